"""Ranks joined by TCP that are killed, stopped, closed or cut off, a few times at set moments.

Whatever happens, who is lost is named, nothing hangs, threads and sockets are given back, and the
next request is served with the same bits. bench/far_rank_faults.py strikes.
"""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from struck import bench_script, check


@pytest.fixture(scope="module")
def faults() -> Iterator[Any]:
    with bench_script("far_rank_faults") as found:
        yield found


@pytest.fixture(scope="module")
def world(faults: Any) -> Iterator[Any]:
    found = faults.World(2)
    yield found
    found.close()


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
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("seed", range(5))
def test_twenty_faults_at_random_moments(faults: Any, ranks: int, seed: int) -> None:
    with faults.open_world(ranks) as strike_one:
        for i in range(20):
            check(strike_one(random.Random(f"{seed} {i}")))


def test_sums_count_what_went_wrong(faults: Any) -> None:
    good = faults.Struck("kill, decode", 1.0, True, True, 0)
    bad = faults.Struck("kill, decode", 4.0, False, False, 3, "rank 2")
    with bench_script("_faults") as shared:
        one, whole = shared.records_of([good, bad], 4, "tcp: ")
    assert (one["name"], one["max"]) == ("tcp: kill, decode, 4 ranks", 4.0)
    assert (whole["faults"], whole["named"], whole["served"], whole["left"]) == (2, 1, 1, 3)
