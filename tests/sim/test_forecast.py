"""What a forecast says of itself: parts that add up, bounds that hold, and what it is worth."""

from dataclasses import replace

import pytest

from monolane.errors import ConfigError, RequestError
from monolane.model import Role
from monolane.plan import named_config, pass_cost
from monolane.sim import (
    NAMES,
    Constant,
    Forecast,
    Machine,
    Ranks,
    Scenario,
    back_solve,
    find_machine,
    find_processor,
    run_scenario,
    spelled,
    timings,
    with_lanes,
    with_reduce,
)

MODEL = named_config("laneformer-2b")
ROLES = (Role.Q, Role.K, Role.V, Role.GATE, Role.UP, Role.DOWN)


def run(device: str, **more: object) -> Forecast:
    machine = find_machine(device)
    return run_scenario(Scenario(model="laneformer-2b", config=MODEL, machine=machine, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "rule"),
    [("h200", None), ("8xh200", "now"), ("8xmi300x", "after:2"), ("cpu:2", None)],
)
def test_the_parts_are_the_whole(device: str, rule: str | None) -> None:
    made = run(device, reduce=rule)
    assert sum(made.parts.values()) == pytest.approx(made.seconds, rel=1e-6)
    assert all(part >= 0 for part in made.parts.values())
    assert made.seconds >= made.floor


def test_the_interval_holds_every_single_bound() -> None:
    made = run("8xh200")
    low, high = made.interval
    for one in made.uncertainties:
        assert low <= one.slow * (1 + 1e-9)
        assert one.fast <= high * (1 + 1e-9)
    spans = [one.span for one in made.uncertainties]
    assert spans == sorted(spans, reverse=True)


def test_one_uncertain_constant_alone_makes_the_interval() -> None:
    machine = find_machine("h200")
    timing = machine.timing
    for name in NAMES:
        if name not in ("share", "chain_us", "bandwidth_gb_s"):
            timing = timing.stated(name, getattr(timing, name).value)
    sure = {k: replace(c, low=c.value, high=c.value) for k, c in timing.chain_us.items()}
    share = {k: replace(c, low=c.value, high=c.value) for k, c in timing.share.items()}
    machine = replace(machine, timing=replace(timing, chain_us=sure, share=share))
    made = run_scenario(Scenario(model="", config=MODEL, machine=machine))
    assert [one.name for one in made.uncertainties] == ["bandwidth_gb_s"]
    assert made.interval == pytest.approx((made.uncertainties[0].slow, made.uncertainties[0].fast))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.47123, "0.4712"),
        (99.996, "100"),
        (3147.4, "3,147"),
        (9999.7, "10,000"),
        (10929.6, "10,930"),
        (1.5e6, "1,500,000"),
    ],
)
def test_no_figure_has_an_exponent(value: float, text: str) -> None:
    assert spelled(value) == text


def test_a_stated_figure_has_no_interval() -> None:
    machine = find_machine("8xh200").stated(bandwidth=4000, link_latency=3, link_bandwidth=400)
    made = run_scenario(Scenario(model="", config=MODEL, machine=machine))
    named = {one.name for one in made.uncertainties}
    assert not named & {"bandwidth_gb_s", "link_us", "link_gb_s"}


def test_more_bandwidth_a_shorter_link_and_fewer_tokens_never_slow_it() -> None:
    base = run("8xh200", reduce="now").speed
    assert run("8xh200", reduce="now", context=128).speed > base
    faster = find_machine("8xh200").stated(bandwidth=5000, link_latency=0.1)
    made = run_scenario(Scenario(model="", config=MODEL, machine=faster, reduce="now"))
    assert made.speed > base


def test_a_traced_pass_is_as_long_as_it_says() -> None:
    made = run("8xh200")
    trace = made.trace()
    slices = [one for one in trace.slices if one.worker == 0]
    assert [one.phase.index for one in slices] == list(range(len(made.plan.phases)))
    whole = slices[-1].ended - slices[0].arrived
    assert whole == pytest.approx((made.seconds - made.parts["launch"]) * 1e9, rel=1e-3)
    assert {one.worker for one in trace.slices} == set(range(0, 1024, 128))


@pytest.mark.parametrize(
    ("device", "word"),
    [
        ("h100", "predicted"),
        ("8xb200", "predicted"),
        ("8xh200-kog", "predicted"),
        ("cpu:2", "other processors"),
        ("amd-epyc:2", "measured on such"),
        ("amd-epyc-zen-3:2", "measured on such"),
        ("amd-epyc-zen-4:2", "measured on such"),
        ("8xcpu:1", "a processor of its own"),
    ],
)
def test_what_a_forecast_is_worth(device: str, word: str) -> None:
    assert word in find_machine(device).standing


def test_processors_by_the_name_that_results_have() -> None:
    assert find_processor("AMD EPYC", 2).name == "amd-epyc:2"  # as of old
    assert find_processor("AMD EPYC (Zen 5)", 2).name == "amd-epyc:2"
    assert find_processor("AMD EPYC (Zen 3)", 2).name == "amd-epyc-zen-3:2"
    assert find_processor("AMD EPYC (Zen 4)", 2).name == "amd-epyc-zen-4:2"
    assert find_processor("AMD EPYC (Zen 2)", 2).name == "cpu:2"  # no decode of ours on one yet
    assert find_processor("Intel(R) Xeon(R) Processor", 2).name == "intel-xeon:2"
    assert find_processor("Intel(R) Xeon(R) Processor (AMX)", 2).name == "intel-xeon-amx:2"
    assert find_processor("Something else", 3).name == "cpu:3"


@pytest.mark.parametrize("dtype", ["float32", "float16", "float8", "bfloat16", "int8", "int4"])
def test_every_device_has_a_share_for_every_format(dtype: str) -> None:
    for name, timing in timings().items():
        assert timing.rates(dtype).bandwidth > 0, name


def with_shares(**shares: float) -> Machine:
    """Return a processor that has these shares of its bandwidth, and a half for other formats."""
    machine = find_machine("cpu:1")
    rows = {
        name: Constant(value=share, low=share, high=share, basis="estimated", source="a test")
        for name, share in (shares | {"other": 0.5}).items()
    }
    return replace(machine, timing=replace(machine.timing, share=rows))


@pytest.mark.parametrize(("named", "share"), [("bfloat16", 0.5), ("q4_k", 1.0)])
def test_the_share_is_that_of_the_format_of_most_bytes(named: str, share: float) -> None:
    """Matrices in blocks stream as blocks do, whatever dtype the rest of the file has."""
    machine = with_shares(**{named: 1.0})
    blocks = {(role, i): "q4_k_panels" for role in ROLES for i in range(MODEL.num_layers)}
    asked = Scenario(model="", config=MODEL, machine=machine, formats=blocks)
    made = run_scenario(asked)
    rate = machine.timing.bandwidth_gb_s.value * 1e9 * share
    assert made.floor == pytest.approx(pass_cost(made.plan).bytes / rate)
    assert Ranks(machine, made.plan).rates.bandwidth == pytest.approx(rate)
    slower = made.speed * 0.9
    us = back_solve(machine, made.plan, slower)
    chain = {"other": replace(machine.timing.share["other"], value=us, low=us, high=us)}
    solved = replace(machine, timing=replace(machine.timing, chain_us=chain))
    assert run_scenario(replace(asked, machine=solved)).speed == pytest.approx(slower, rel=1e-3)


def test_a_device_without_a_share_for_other_formats_is_refused() -> None:
    timing = find_machine("cpu:1").timing
    with pytest.raises(ValueError, match="share: expected one for 'other' formats too"):
        replace(timing, share={"int8": timing.share["other"]})


@pytest.mark.parametrize("name", ["", "gpu", "h200:2", "xh200", "0xh200", "cpu:0", "8x"])
def test_unknown_machines(name: str) -> None:
    with pytest.raises((ConfigError, RequestError), match="device"):
        find_machine(name)


def test_rules_and_lanes() -> None:
    now = with_reduce(MODEL, "now")
    assert {str(layer.mlp_reduce) for layer in now.layers} == {"now"}
    after = with_reduce(MODEL, "after:4")
    rules = [str(layer.attention_reduce) for layer in after.layers]
    assert rules == ["never"] * 4 + ["after 4"] * 11
    assert [layer.window for layer in after.layers] == [layer.window for layer in MODEL.layers]
    assert with_reduce(MODEL, "after:2") == MODEL  # what the model was trained with
    for wrong in ("", "later", "after:0", "after:x"):
        with pytest.raises(RequestError, match="reduce: expected now, never or after:D"):
            with_reduce(MODEL, wrong)
    with pytest.raises(ConfigError, match="expected a model of several lanes, got one"):
        with_reduce(with_lanes(MODEL, 1), "now")
    with pytest.raises(ConfigError):
        with_lanes(MODEL, 5)


def test_every_constant_has_a_source_and_sane_bounds() -> None:
    seen = 0
    for timing in timings().values():
        for name in NAMES:
            held = getattr(timing, name)
            for constant in held.values() if isinstance(held, dict) else (held,):
                assert constant.low <= constant.value <= constant.high
                assert len(constant.source) >= len("as QKV")
                seen += 1
    assert seen > 100


def test_a_constant_outside_its_bounds() -> None:
    with pytest.raises(ConfigError, match="expected low <= value <= high, got 2, 1, 3"):
        Constant(value=1, low=2, high=3, basis="measured", source="here")
    with pytest.raises(ConfigError, match="expected at least 0, got -1"):
        Constant(value=-1, low=-1, high=0, basis="measured", source="here")
