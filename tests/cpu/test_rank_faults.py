"""Ranks killed, stopped or without memory, at random moments of starting, prefill and decode.

Whatever happens, a rank that is lost is named, nothing hangs and nothing is left behind, and the
next request is served with the same bits. bench/rank_faults.py strikes, here a few times.
"""

import importlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monolane.cpu import CpuExecutor

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def faults() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        yield importlib.import_module("rank_faults")


@pytest.fixture(scope="module", params=[2])
def ranks(faults: Any, request: pytest.FixtureRequest) -> Iterator[CpuExecutor]:
    executor = faults.open_ranks(request.param)
    yield executor
    executor.close()


def check(faults: Any, executor: CpuExecutor, seed: int, *struck: tuple[str, str]) -> None:
    rng, wanted = random.Random(seed), faults.ask(executor)
    for kind, stage in struck:
        outcome = faults.strike(executor, rng, kind, stage, wanted)
        assert outcome.named, outcome
        assert outcome.served, outcome
        assert (outcome.processes, outcome.segments) == (0, 0), outcome
        assert outcome.seconds < faults.HANGS
        assert len(faults.rank_processes()) == len(executor.processes) - 1


def test_one_rank_is_lost_in_each_stage(faults: Any, ranks: CpuExecutor) -> None:
    check(faults, ranks, 1, *(("kill", stage) for stage in faults.STAGES))


def test_ranks_that_cannot_share_memory_say_so(faults: Any, ranks: CpuExecutor) -> None:
    check(faults, ranks, 0, ("full", "sharing"))


@pytest.mark.slow
def test_a_rank_that_is_stopped_while_it_starts_is_named(faults: Any, ranks: CpuExecutor) -> None:
    check(faults, ranks, 2, ("stop", "starting"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [4], indirect=True)
@pytest.mark.parametrize("seed", range(10))
def test_twenty_faults_at_random_moments(faults: Any, ranks: CpuExecutor, seed: int) -> None:
    before = set(Path("/dev/shm").iterdir())
    for outcome in faults.strike_all(ranks, (f"{seed} {i}" for i in range(20))):
        assert outcome.named, outcome
        assert outcome.served, outcome
        assert (outcome.processes, outcome.segments) == (0, 0), outcome
    assert set(Path("/dev/shm").iterdir()) <= before


def test_sums_count_what_went_wrong(faults: Any) -> None:
    good = faults.Outcome("kill, decode", 1.0, True, 0, 0, True)
    bad = faults.Outcome("kill, decode", 4.0, False, 2, 1, False)
    one, whole = faults.records_of([good, bad], 4, 3)
    assert (one["name"], one["max"], one["faults"]) == ("kill, decode, 4 ranks", 4.0, 2)
    assert (whole["named"], whole["served"], whole["left_processes"]) == (1, 1, 2)
    assert (whole["left_segments"], whole["segments_in_dev_shm"]) == (1, 3)
