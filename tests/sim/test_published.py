"""Kog's two published speeds, from the constants that were solved for them."""

import pytest

from monolane.errors import ConfigError
from monolane.plan import PhaseKind, build, named_config
from monolane.sim import Scenario, back_solve, find_machine, run_scenario, timings

PUBLISHED = [("8xh200-kog", 2100.0), ("8xmi300x-kog", 3000.0)]


def scenario(device: str, **more: object) -> Scenario:
    config = named_config("laneformer-2b")
    machine = find_machine(device)
    return Scenario(model="laneformer-2b", config=config, machine=machine, dtype="float16", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("device", "speed"), PUBLISHED)
def test_the_published_speed_comes_out(device: str, speed: float) -> None:
    made = run_scenario(scenario(device))
    assert made.speed == pytest.approx(speed, rel=0.01)
    chain = made.machine.timing.chain_us["other"]
    assert chain.basis == "back-solved"
    assert f"{speed:,.0f} tokens/s" in chain.source
    assert back_solve(made.machine, made.plan, speed) == pytest.approx(chain.value, rel=0.01)


@pytest.mark.parametrize(("device", "speed"), PUBLISHED)
def test_a_sum_by_hand_agrees(device: str, speed: float) -> None:
    """Five chains a layer, and weights multiplied at the catch-up rate where none are late."""
    machine = find_machine(device)
    plan = build(named_config("laneformer-2b"), machine.device, "float16", context=1024)
    timing = machine.timing
    weights = sum(matrix.bytes for phase in plan.phases for matrix in phase.matrices)
    rate = timing.bandwidth_gb_s.value * 1e9 * 8
    chains = 5 * 15 + 2  # HEAD and CHOOSE
    by_hand = chains * timing.chain_us["other"].value / 1e6
    by_hand += weights / (rate * timing.catch_up.value)
    assert plan.find(PhaseKind.HEAD).matrices
    # Left out: keys, the end's exchange, and products that wait for weights (MI300X's small ring).
    assert by_hand == pytest.approx(1 / speed, rel=0.1)
    assert by_hand < 1 / speed


def test_a_speed_beyond_the_machine() -> None:
    machine = find_machine("8xh200-kog")
    plan = build(named_config("laneformer-2b"), machine.device, "float16", context=1024)
    with pytest.raises(ConfigError, match="speed: expected at most .* 8xh200-kog reaches"):
        back_solve(machine, plan, 9000.0)


def test_our_engine_is_predicted_with_an_interval_and_what_it_hangs_on() -> None:
    for device in ("8xh200", "8xmi300x"):
        made = run_scenario(scenario(device))
        low, high = made.interval
        assert low < made.speed < high
        assert len(made.uncertainties) >= 3
        assert made.record()["predicted"] is True
        assert "predicted" in made.record()["standing"]


def test_no_gpu_counts_as_executed() -> None:
    """As long as no results file of a GPU is committed."""
    processors = {n for n, t in timings().items() if t.executed}
    assert processors == {
        "cpu",
        "amd-epyc",
        "amd-epyc-zen-3",
        "amd-epyc-zen-4",
        "intel-xeon",
        "intel-xeon-amx",
    }
