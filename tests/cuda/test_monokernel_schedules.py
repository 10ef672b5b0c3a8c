"""Thousands of schedules, the same bits: blocks, warps, stores and copies in any order.

A schedule is drawn from its seed and replays; see emulation/emulator.h for what that can show.
"""

import pytest
from rig import MakeRig
from schedules import CASES, GAPS, Case

FEW = 25  # of each case, in every run
MANY = 1200  # where there is time
SHARES = 4  # of the many, so that processes can divide them among themselves
# One share in the gate: 300 schedules of each case, where each of test_monokernel_bugs' bugs shows
# within 60. The others are for whoever changes how blocks meet.
SHARE = [0, *(pytest.param(i, marks=pytest.mark.exhaustive) for i in range(1, SHARES))]


def check(make_rig: MakeRig, case: Case, seeds: range) -> None:
    rig = case.make(make_rig)
    state = case.fill(rig)
    expected = case.expected(rig, state)
    for seed in seeds:
        outcome = case.launch(rig, state, seed)
        wanted = expected[seed % len(expected)]
        assert outcome.same(wanted), (seed, outcome.error, outcome.fault)


@pytest.mark.parametrize("name", CASES)
def test_few(make_rig: MakeRig, name: str) -> None:
    check(make_rig, CASES[name], range(FEW))


@pytest.mark.slow
@pytest.mark.parametrize("share", SHARE)
@pytest.mark.parametrize("name", CASES)
def test_many(make_rig: MakeRig, name: str, share: int) -> None:
    each = MANY // SHARES
    check(make_rig, CASES[name], range(FEW + share * each, FEW + (share + 1) * each))


def test_layers_that_never_exchange_between_those_that_do(make_rig: MakeRig) -> None:
    check(make_rig, GAPS, range(60))
