"""The simulated clock, where the answer is known by hand: layers that are all alike."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from monolane.plan import Choice, PhaseKind, Plan, Scope, build, cpu, named_config, pass_cost
from monolane.sim import Rates, Simulation, Step, with_reduce

BANDWIDTH = 1e12
LAYERS = 15
# Sums of some hundred float64 terms.
EXACT = 1e-9
KINDS = (PhaseKind.QKV, PhaseKind.ATTEND, PhaseKind.OUT, PhaseKind.GATE_UP, PhaseKind.DOWN)


def plan_of(rule: str, devices: int, workers: int = 1, context: int = 64) -> Plan:
    """Return Laneformer 2B's plan on devices that compute at once; 64 tokens fit a window."""
    config = with_reduce(named_config("laneformer-2b"), rule)
    device = replace(cpu(workers), devices=devices, compute=1e18, choice=Choice.EVERYONE)
    return build(config, device, "bfloat16", max_width=1, context=context)


def seconds(plan: Plan, **rates: object) -> float:
    made = Rates(bandwidth=BANDWIDTH, **rates)  # type: ignore[arg-type]
    return Simulation(plan).run(made).seconds


def streaming(plan: Plan) -> float:
    return pass_cost(plan).bytes / BANDWIDTH / plan.device.devices


def layer_seconds(plan: Plan) -> float:
    """All layers are alike: what HEAD does not stream, by their number."""
    head = sum(matrix.bytes for matrix in plan.find(PhaseKind.HEAD).matrices)
    return (streaming(plan) - head / BANDWIDTH / plan.device.devices) / LAYERS


@pytest.mark.parametrize(("devices", "workers"), [(1, 1), (1, 8), (8, 1), (8, 16)])
def test_without_exchanges_a_token_takes_its_bytes_by_the_bandwidth(
    devices: int, workers: int
) -> None:
    plan = plan_of("never", devices, workers)
    # 16 workers of a lane have unequal shares of heads and of blocks of rows.
    slack = EXACT if workers == 1 or devices == 1 else 0.02
    assert seconds(plan) == pytest.approx(streaming(plan), rel=slack)
    assert seconds(plan) >= streaming(plan) * (1 - EXACT)


@pytest.mark.parametrize("delay", [1e-6, 5e-6, 2e-5, 1e-4])
def test_blocking_pays_twice_a_layer_and_once_for_the_choice(delay: float) -> None:
    plan = plan_of("now", 8)
    expected = streaming(plan) + (2 * LAYERS + 1) * delay
    assert seconds(plan, link_latency=delay) == pytest.approx(expected, rel=EXACT)


def test_skew_and_size_count_as_latency_does() -> None:
    plan = plan_of("now", 8)
    sent = 7 * plan.config.hidden_size * 8  # a lane's output, to seven others, stamped
    slow = seconds(plan, link_bandwidth=1e9, skew=3e-6)
    exchanges = 2 * LAYERS * (sent / 1e9 + 3e-6) + 3e-6  # the choice sends next to nothing
    assert slow == pytest.approx(streaming(plan) + exchanges, rel=EXACT)


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_a_delay_hides_an_exchange_up_to_the_time_of_so_many_layers(layers: int) -> None:
    plan = plan_of(f"after:{layers}", 8)
    crossing = layers * layer_seconds(plan)
    for share in (0.1, 0.5, 1.0):
        link = share * crossing
        assert seconds(plan, link_latency=link) == pytest.approx(
            streaming(plan) + link, rel=EXACT
        )  # the link that is left is the choice's
    beyond = 0.01 * crossing
    lost = seconds(plan, link_latency=crossing + beyond) - streaming(plan) - crossing
    assert lost == pytest.approx((1 + len(list(_gates(layers)))) * beyond, rel=1e-6)


def _gates(delay: int) -> Iterator[int]:
    """Yield the layers at which a link that is too slow is felt.

    The attention of the first layer that exchanges waits for an output of ``delay`` layers ago.
    What comes behind is late by as much, so the next wait that adds to it is that for the first
    late output: of the same layer's MLP, which is read ``delay + 1`` layers on. That one is late
    before its own attention, whose output is read ``delay`` layers on, and so forth.
    """
    layer, late_mlp = delay, True
    while layer <= LAYERS:  # LAYERS itself is HEAD, which reads the last MLP
        yield layer
        layer += delay + 1 if late_mlp else delay
        late_mlp = not late_mlp


def test_a_delay_beats_blocking_by_what_it_hides() -> None:
    now, after = plan_of("now", 8), plan_of("after:2", 8)
    link = 2e-5
    gained = seconds(now, link_latency=link) - seconds(after, link_latency=link)
    assert gained == pytest.approx(2 * LAYERS * link, rel=EXACT)


def test_without_a_ring_every_chain_is_paid() -> None:
    plan = plan_of("never", 1, 8)
    chain = dict.fromkeys(KINDS, 2e-6)
    expected = streaming(plan) + len(KINDS) * LAYERS * 2e-6
    assert seconds(plan, chain=chain) == pytest.approx(expected, rel=EXACT)


def test_a_ring_hides_as_much_of_a_chain_as_it_has_bytes_for() -> None:
    plan = plan_of("never", 1, 8, context=1)
    chain = {PhaseKind.GATE_UP: 2e-6}
    rate = BANDWIDTH / 8
    full = seconds(plan, chain=chain, ring=1e9, catch_up=1e6)
    assert full == pytest.approx(streaming(plan), rel=EXACT)
    half = seconds(plan, chain=chain, ring=rate * 1e-6, catch_up=1e6)
    assert half == pytest.approx(streaming(plan) + LAYERS * 1e-6, rel=EXACT)


def test_what_is_ready_is_multiplied_no_faster_than_the_catch_up_rate() -> None:
    plan = plan_of("never", 1, 8, context=1)
    chain = dict.fromkeys((*KINDS, PhaseKind.HEAD), 1e-3)  # everything has arrived
    made = seconds(plan, chain=chain, ring=1e12, catch_up=4.0)
    waits = (len(KINDS) * LAYERS + 1) * 1e-3
    keys = sum(step.bytes.sum() for step in _steps(plan) if step.phase.kind is PhaseKind.ATTEND)
    weights = pass_cost(plan).bytes - keys
    assert made == pytest.approx(waits + (weights / 4 + keys) / BANDWIDTH, rel=EXACT)


def _steps(plan: Plan) -> tuple[Step, ...]:
    return Simulation(plan).run(Rates(bandwidth=BANDWIDTH)).steps


def test_a_group_waits_for_its_slowest_worker_and_the_sync() -> None:
    plan = plan_of("never", 1, 16)  # 8 groups of 2
    counted = sum(wait.scope is Scope.GROUP for p in plan.phases for wait in p.waits)
    more = seconds(plan, group_sync=1e-6) - seconds(plan)
    assert counted == 5 * LAYERS
    assert more == pytest.approx(counted * 1e-6, rel=1e-6)


@pytest.mark.parametrize("rule", ["now", "after:1", "after:2"])
def test_nobody_begins_before_those_have_ended_that_it_waits_for(rule: str) -> None:
    plan = plan_of(rule, 4, 6)
    rates = Rates(
        bandwidth=BANDWIDTH,
        group_sync=1e-6,
        all_sync=2e-6,
        link_latency=5e-5,
        chain=dict.fromkeys(KINDS, 1e-6),
        ring=1e4,
        catch_up=2.0,
    )
    steps = Simulation(plan).run(rates).steps
    groups = np.arange(plan.groups.workers) // plan.groups.workers_each
    checked = 0
    for step in steps:
        for wait in step.phase.waits:
            if wait.count <= 0:
                continue
            ended = steps[wait.count - 1].ended
            for group in range(plan.groups.count):
                of_all = wait.scope is Scope.ALL
                whole = ended if of_all else ended[groups == group]
                assert (step.begun[groups == group] >= whole.max()).all()
                checked += 1
    assert checked > 100


def test_a_wide_pass_takes_as_long_as_it_computes() -> None:
    device = replace(cpu(1), compute=1e12)
    plan = build(named_config("laneformer-2b"), device, "bfloat16", max_width=64, context=64)
    cost = pass_cost(plan, 64)
    made = Simulation(plan, 64).run(Rates(bandwidth=1e15)).seconds
    assert made == pytest.approx(cost.operations / 1e12, rel=1e-6)
