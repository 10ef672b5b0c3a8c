"""Ranks joined by TCP that are killed, stopped, closed or cut off, a few times at set moments.

Whatever happens, who is lost is named, nothing hangs, threads and sockets are given back, and the
next request is served with the same bits. far_rank_strikes.py strikes.
"""

import random
from collections.abc import Iterator

import far_rank_strikes
import pytest
from far_rank_strikes import World, strike
from struck import check


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    found = World(2)  # the second rank is a subprocess
    yield found
    found.close()


@pytest.mark.parametrize("stage", ["joining", "prefill", "decode"])
def test_a_closed_link_is_told(world: World, stage: str) -> None:
    check(strike(world, random.Random(1), "close", stage))


@pytest.mark.slow
@pytest.mark.parametrize(
    "struck", [("kill", "joining"), ("stop", "decode"), ("cut", "prefill")], ids=" ".join
)
def test_a_rank_that_is_lost_is_named(world: World, struck: tuple[str, str]) -> None:
    check(strike(world, random.Random(2), *struck))


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("seed", range(5))
def test_twenty_faults_at_random_moments(ranks: int, seed: int) -> None:
    with far_rank_strikes.open_world(ranks) as strike_one:
        for i in range(20):
            check(strike_one(random.Random(f"{seed} {i}")))
