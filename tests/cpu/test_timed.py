"""Phases that take a modelled time: the simulator's speed, between real ranks, in the same bits."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from monolane.cpu import CpuExecutor
from monolane.errors import RequestError
from monolane.executor_api import Advance
from monolane.model import Weights, render_config
from monolane.sim import Ranks, find_machine, with_reduce

DEMO = Path(__file__).parents[2] / "src" / "monolane" / "demo"
TOKEN = 0.3  # seconds that a token is stretched to
TOKENS = 6
# Of TOKEN: thirty wake-ups of 2.5 ms, some hundred times what one takes on an idle machine.
MOST = 1.25
PROMPT = (5, 6, 7)


@pytest.fixture(scope="module")
def timed() -> Iterator[CpuExecutor]:
    weights = Weights.open(DEMO)
    wanted = {"context": 64, "slots": 1, "workers": 2, "ranks": 2}
    executor = CpuExecutor(weights, timed=True, patience=60.0, **wanted)  # type: ignore[arg-type]
    yield executor
    executor.close()


def draw(executor: CpuExecutor, budget: int) -> tuple[list[int], float]:
    """Return tokens, and the least seconds between two of them."""
    executor.truncate(0, 0)
    executor.start([Advance(slot=0, token_ids=PROMPT, budget=budget)])
    while not executor.read(1.0):
        pass
    events = executor.take()
    least = min(b.time_ns - a.time_ns for a, b in pairwise(events))
    return [event.token_id for event in events], least / 1e9


def draw_until_quick(executor: CpuExecutor, budget: int) -> tuple[list[int], float]:
    """Draw again where the machine was so busy that no token came in time."""
    tokens, seconds = draw(executor, budget)
    for _ in range(10):
        if seconds <= MOST * TOKEN:
            break
        seconds = min(seconds, draw(executor, budget)[1])
    return tokens, seconds


def set_all(executor: CpuExecutor, model: Ranks, link: float, *, computes: bool = True) -> float:
    """Stretch a token to TOKEN seconds; return the factor."""
    stretch = TOKEN / model.seconds(link)
    table = model.timetable(link, stretch)
    executor.set_times(table.times, table.ring, computes=computes)
    executor.set_links(table.hops)
    return stretch


@pytest.mark.parametrize("machine", ["2xcpu:1", "2xh200"])
def test_without_a_link_delay_a_token_takes_the_simulators_time(
    timed: CpuExecutor, machine: str
) -> None:
    """Never less, since nobody wakes early; more by what waking some thirty times costs.

    On a loaded machine that is up to some milliseconds each time, so the quickest token counts.
    """
    model = Ranks(find_machine(machine), timed.plan)
    set_all(timed, model, 0.0)
    tokens, seconds = draw_until_quick(timed, TOKENS)
    assert 0.999 * TOKEN <= seconds <= MOST * TOKEN
    alone = CpuExecutor(Weights.open(DEMO), context=64, slots=1, workers=2)
    alone.start([Advance(slot=0, token_ids=PROMPT, budget=TOKENS)])
    while not alone.read(1.0):
        pass
    assert [event.token_id for event in alone.take()] == tokens


def test_a_link_costs_what_the_simulator_says(timed: CpuExecutor) -> None:
    """Also where it is longer than two layers, so that a delay of 2 hides only a part of it."""
    model = Ranks(find_machine("2xcpu:1"), timed.plan)
    link = model.seconds(0.0)
    assert model.seconds(link) > 3 * link
    set_all(timed, model, link, computes=False)
    _, seconds = draw_until_quick(timed, 3)
    assert 0.999 * TOKEN <= seconds <= MOST * TOKEN


def test_the_times_of_phases_are_the_simulators_own(timed: CpuExecutor) -> None:
    """Without waits or rings, a pass takes the sum of a worker's phases."""
    model = Ranks(find_machine("2xcpu:1"), timed.plan)
    table = model.timetable(20e-6, 1000.0)
    chain, _, most, beside = np.moveaxis(table.times, -1, 0)
    worker = (chain + most + beside).sum(axis=0).max() / 1e12
    assert worker == pytest.approx(model.seconds(0.0), rel=0.02)
    assert table.ring == 0
    assert table.hops[-1] == 20_000_000
    assert min(table.hops) == 20_000_000 < max(table.hops)


def test_a_device_with_many_workers_counts_as_one() -> None:
    """Its ring, its chains and the waits inside it: about the speed of the whole simulation."""
    from monolane.plan import build, cpu, named_config
    from monolane.sim import Scenario, run_scenario

    config = named_config("laneformer-2b")
    machine = find_machine("8xh200")
    whole = run_scenario(
        Scenario(model="laneformer-2b", config=config, machine=machine, dtype="bfloat16")
    )
    model = Ranks(machine, build(config, cpu(8), "bfloat16", context=1024))
    assert model.seconds(0.0) == pytest.approx(whole.seconds, rel=0.1)


def test_times_need_ranks_that_were_started_timed(timed: CpuExecutor) -> None:
    alone = CpuExecutor(Weights.open(DEMO), context=64, slots=1, workers=2)
    model = Ranks(find_machine("2xcpu:1"), timed.plan)
    table = model.timetable(0.0, 1.0)
    with pytest.raises(RequestError, match="times: expected .* that were started timed"):
        alone.set_times(table.times, table.ring)
    with pytest.raises(RequestError, match="links: expected .* started with a link delay or timed"):
        alone.set_links(table.hops)
    with pytest.raises(RequestError, match="times: expected one for each of"):
        timed.set_times(table.times[1:], table.ring)
    with pytest.raises(RequestError, match="links: expected a time for each phase"):
        timed.set_links(table.hops[1:])


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["now", "after:1"])
def test_other_rules_take_the_simulators_time_too(rule: str, tmp_path: Path) -> None:
    weights = Weights.open(DEMO)
    raw = render_config(with_reduce(weights.config, rule))
    (tmp_path / "config.json").write_text(json.dumps(raw))
    (tmp_path / "model.safetensors").symlink_to(DEMO / "model.safetensors")
    wanted = {"context": 64, "slots": 1, "workers": 2, "ranks": 2}
    executor = CpuExecutor(Weights.open(tmp_path), timed=True, patience=60.0, **wanted)  # type: ignore[arg-type]
    try:
        model = Ranks(find_machine("2xcpu:1"), executor.plan)
        for link in (0.0, 20e-6):
            set_all(executor, model, link)
            _, seconds = draw_until_quick(executor, 4)
            assert 0.999 * TOKEN <= seconds <= MOST * TOKEN
    finally:
        executor.close()
