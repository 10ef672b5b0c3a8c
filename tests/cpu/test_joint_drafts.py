"""How far a drafter for all sequences is asked to draft, by what it takes; without a clock."""

import pytest

from monolane._core import SpeculationReplay

PASS = 100_000  # ns of a pass of one row


@pytest.fixture
def replay() -> SpeculationReplay:
    """A sequence of which passes of one row are known."""
    found = SpeculationReplay(64, 8192)
    found.begin(list(range(100)))
    for token in range(100, 105):
        found.draw([token], PASS)
    return found


def test_a_block_costs_the_same_however_long(replay: SpeculationReplay) -> None:
    """At 0.7 of a pass for a token none is worth it, and for seven of them all are."""
    assert replay.draft_jointly(31, 0, 0.7 * PASS, 0.9) == 0
    assert replay.draft_jointly(31, 7, 0.7 * PASS, 0.9) == 7


def test_no_more_is_asked_than_a_block_has(replay: SpeculationReplay) -> None:
    assert replay.draft_jointly(31, 7, 0.01 * PASS, 1.0) == 7
    assert replay.draft_jointly(4, 7, 0.01 * PASS, 1.0) == 4
    assert replay.draft_jointly(31, 0, 0.01 * PASS, 1.0) > 7


def test_a_block_is_paid_for_once(replay: SpeculationReplay) -> None:
    """Of the two passes that a sequence may lose: csrc/draft/draft_budget.h."""
    assert [replay.draft_jointly(31, 7, 0.7 * PASS, 0.9) for _ in range(3)] == [7, 7, 0]


@pytest.mark.parametrize("cost", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("interrupted", [0, 10_000])
def test_what_is_never_right_is_hardly_tried(
    replay: SpeculationReplay, cost: float, interrupted: int
) -> None:
    """Rare short drafts are left, to see if they pay by now: for half a percent of the time.

    A pass that the machine interrupted for a second pays for no more of them.
    """
    drafted = []
    for i in range(1000):
        drafted.append(replay.draft_jointly(31, 0, cost * PASS, 0.9))
        took = interrupted if i == 500 else 1
        replay.draw([0], took * PASS)  # it drafts ones
    assert sum(drafted[100:]) * cost <= 0.005 * 900 + 2 * cost  # what was saved up before
    assert max(drafted[100:]) == 2
