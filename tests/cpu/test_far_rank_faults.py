"""Ranks joined by TCP that are killed, stopped, closed or cut off, a few times at set moments.

Whatever happens, who is lost is named, nothing hangs, threads and sockets are given back, and the
next request is served with the same bits. bench/far_rank_faults.py strikes.
"""

import importlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def faults() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        yield importlib.import_module("far_rank_faults")


@pytest.fixture(scope="module", params=[2])
def world(faults: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    found = faults.World(request.param)
    yield found
    found.close()


def check(outcome: Any) -> None:
    assert (outcome.named, outcome.served, outcome.left) == (True, True, 0), outcome


@pytest.mark.parametrize("stage", ["joining", "prefill", "decode"])
def test_a_closed_link_is_told(faults: Any, world: Any, stage: str) -> None:
    check(faults.strike(world, random.Random(1), "close", stage))


@pytest.mark.slow
@pytest.mark.parametrize(
    "struck", [("kill", "joining"), ("stop", "decode"), ("cut", "prefill")], ids=" ".join
)
def test_a_rank_that_is_lost_is_named(faults: Any, world: Any, struck: tuple[str, str]) -> None:
    check(faults.strike(world, random.Random(2), *struck))


@pytest.mark.exhaustive
@pytest.mark.parametrize("world", [2, 4], indirect=True)
@pytest.mark.parametrize("seed", range(5))
def test_twenty_faults_at_random_moments(faults: Any, world: Any, seed: int) -> None:
    for outcome in faults.strike_all(world, (f"{seed} {i}" for i in range(20))):
        check(outcome)


def test_sums_count_what_went_wrong(faults: Any) -> None:
    good = faults.Outcome("kill, decode", 1.0, True, True, 0)
    bad = faults.Outcome("kill, decode", 4.0, False, False, 3, "rank 2")
    one, whole = faults.records_of([good, bad], 4)
    assert (one["name"], one["max"]) == ("tcp: kill, decode, 4 ranks", 4.0)
    assert (whole["faults"], whole["named"], whole["served"], whole["left"]) == (2, 1, 1, 3)
