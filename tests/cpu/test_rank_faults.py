"""Ranks killed, stopped or without memory, at random moments of starting, prefill and decode.

Whatever happens, a rank that is lost is named, nothing hangs and nothing is left behind, and the
next request is served with the same bits. rank_strikes.py strikes, a few times in the gate.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import rank_strikes
from struck import HANGS, ask, check

from monolane.cpu import CpuExecutor


@pytest.fixture(scope="module", params=[2])
def ranks(request: pytest.FixtureRequest) -> Iterator[CpuExecutor]:
    executor = rank_strikes.open_ranks(request.param)
    yield executor
    executor.close()


def strike(executor: CpuExecutor, seed: int, *struck: tuple[str, str]) -> None:
    rng, wanted = random.Random(seed), ask(executor)
    for kind, stage in struck:
        outcome = rank_strikes.strike(executor, rng, kind, stage, wanted)
        check(outcome)
        assert outcome.seconds < HANGS
        assert len(rank_strikes.rank_processes()) == len(executor.processes) - 1


def test_one_rank_is_lost_in_each_stage(ranks: CpuExecutor) -> None:
    strike(ranks, 1, *(("kill", stage) for stage in rank_strikes.STAGES))


def test_ranks_that_cannot_share_memory_say_so(ranks: CpuExecutor) -> None:
    strike(ranks, 0, ("full", "sharing"))


@pytest.mark.slow
def test_a_rank_that_is_stopped_while_it_starts_is_named(ranks: CpuExecutor) -> None:
    strike(ranks, 2, ("stop", "starting"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [4], indirect=True)
@pytest.mark.parametrize("seed", range(10))
def test_twenty_faults_at_random_moments(ranks: CpuExecutor, seed: int) -> None:
    before, wanted = set(Path("/dev/shm").iterdir()), ask(ranks)
    for i in range(20):
        check(rank_strikes.strike_any(ranks, random.Random(f"{seed} {i}"), wanted))
    assert set(Path("/dev/shm").iterdir()) <= before
