"""What drafts may lose: a stretch of n tokens takes at most 1.004 n passes, and two more.

Without a clock: the test says what each pass and each look for drafts takes, and what is drawn.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from monolane._core import SpeculationReplay

PASS = 100_000  # ns of a pass of one row
PART, FIRST = 0.004, 2  # csrc/draft/draft_budget.h
COSTS: dict[str, Callable[[int], float]] = {  # of a pass by its rows, beside one of one row
    "steep": lambda rows: 1 + (rows - 1) * 2 / 3,  # four rows cost three times as much
    "flat": lambda rows: 1 + (rows - 1) / 100,
    "a step": lambda rows: 1.0 if rows <= 8 else 20.0,  # what is wider costs what nobody expects
}


def dear(rows: int) -> float:
    """Passes of more than one row on a machine that does something else besides."""
    return 1.0 if rows == 1 else 5.0


Draw = Callable[[Sequence[int], int], Iterator[int]]  # drafted, verified -> what comes next


@dataclass
class Course:
    """How long a sequence took, in passes of one row, and for how many tokens."""

    passes: float = 0.0
    tokens: int = 0
    accepted: int = 0
    looks: int = 0

    def follow(
        self,
        replay: SpeculationReplay,
        cost: Callable[[int], float],
        lookup: float,
        count: int,
        draw: Draw,
    ) -> None:
        """Draw ``count`` tokens; nowhere may more have been lost than is allowed."""
        end, begun = self.tokens + count, (self.passes, self.tokens)
        while self.tokens < end:
            found = replay.draft(min(32, end - self.tokens - 1), round(lookup * PASS))
            drafted, verified = found or ([], 0)
            drawn = []
            for token in draw(drafted, verified):
                drawn.append(token)
                if len(drawn) > verified or token != drafted[len(drawn) - 1]:
                    break
            took = cost(1 + verified)
            replay.draw(drawn, round(took * PASS))
            self.looks += found is not None
            self.passes += took + (lookup if found is not None else 0)
            self.tokens += len(drawn)
            self.accepted += len(drawn) - 1
            # A pass of a width that was never run may take more than was thought: one too much.
            # The first three looks are free: nobody knows what they take.
            surprise = (cost(33) if cost in (COSTS["a step"], dear) else 1) + 3 * lookup
            passes, tokens = self.passes - begun[0], self.tokens - begun[1]
            assert passes <= tokens + PART * passes + FIRST + surprise


def novel(rng: random.Random) -> Draw:
    """Text with nothing to copy but by chance."""

    def draw(drafted: Sequence[int], verified: int) -> Iterator[int]:
        while True:
            yield rng.randrange(60)

    return draw


def spiteful(rng: random.Random) -> Draw:
    """What is drafted, as long as nobody verifies it; then anything else."""

    def draw(drafted: Sequence[int], verified: int) -> Iterator[int]:
        yield drafted[0] + (verified > 0) if drafted else rng.randrange(60)
        yield 70  # behind a draft that was right after all

    return draw


def copied(text: Sequence[int]) -> Draw:
    """A known text."""
    rest = iter(text)
    return lambda drafted, verified: rest


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("lookup", [0.001, 0.05], ids=["a long pass", "a short pass"])
@pytest.mark.parametrize("text", [novel, spiteful])
def test_no_text_loses_more_than_is_allowed(
    text: Callable[[random.Random], Draw], lookup: float, cost: str
) -> None:
    for seed in range(4):
        rng = random.Random(seed)
        replay = SpeculationReplay(64, 8192)
        replay.begin([rng.randrange(60) for _ in range(300)])
        course = Course()
        course.follow(replay, COSTS[cost], lookup, 1500, text(rng))
        if cost != "a step":
            assert course.passes <= 1.01 * course.tokens


@pytest.mark.parametrize("cost", ["steep", "flat"])
def test_what_was_gained_in_one_sequence_is_not_lost_in_the_next(cost: str) -> None:
    rng = random.Random(1)
    file = [rng.randrange(3000) for _ in range(400)]
    replay = SpeculationReplay(64, 8192)
    for _ in range(3):
        replay.begin(file)
        course = Course()
        course.follow(replay, COSTS[cost], 0.001, 400, copied(file))
        assert course.tokens > (1.3 if cost == "steep" else 12) * course.passes
        replay.begin([rng.randrange(60) for _ in range(300)])
        Course().follow(replay, COSTS[cost], 0.001, 600, spiteful(rng))


def test_where_passes_are_short_drafts_are_looked_for_seldom_until_they_pay() -> None:
    rng = random.Random(2)
    file = [rng.randrange(3000) for _ in range(400)]
    replay = SpeculationReplay(64, 8192)
    replay.begin(file)
    course = Course()
    course.follow(replay, COSTS["flat"], 0.05, 2000, copied(range(5000, 7000)))
    assert course.looks < 2000 * 0.1 + 2 / 0.05
    rest = Course()
    rest.follow(replay, COSTS["flat"], 0.05, 395, copied(file))
    assert rest.tokens > 4 * rest.passes


def union(rows: int) -> float:
    """What a pass of a mixture takes that reads 8 of 256 experts a row, 70 % of what it reads."""
    return 0.3 + 0.7 * 256 / 8 * (1 - (1 - 8 / 256) ** rows)


@pytest.mark.parametrize("seed", range(4))
def test_a_mixture_is_never_slower_than_plain_decoding(seed: int) -> None:
    """Drafts are right half of the time, and a second row takes 1.7 times as long: that loses.

    Knowing what two rows read, nobody tries; so not even the first passes lose anything.
    """

    def half_right(rng: random.Random) -> Draw:
        def draw(drafted: Sequence[int], verified: int) -> Iterator[int]:
            for token in drafted[:verified] if drafted else ():
                yield token if rng.random() < 0.5 else 70
            while True:
                yield drafted[verified] if len(drafted) > verified else rng.randrange(60)
                return

        return draw

    courses = {}
    for read in ([union(rows) for rows in range(1, 65)], []):
        rng = random.Random(seed)
        replay = SpeculationReplay(64, 8192, read)
        replay.begin([rng.randrange(8) for _ in range(300)])
        course = Course()
        course.follow(replay, union, 0.001, 1500, half_right(rng))
        courses[bool(read)] = course
    assert courses[True].passes <= courses[True].tokens / 0.99
    assert courses[True].passes < courses[False].passes


def test_where_all_passes_get_shorter_drafts_go_on() -> None:
    """Behind a long context, passes of one row alone, behind a short one: wider ones follow it."""
    steep, rng = COSTS["steep"], random.Random(3)
    file = [rng.randrange(3000) for _ in range(400)]
    replay = SpeculationReplay(64, 8192)
    replay.begin(file)
    Course().follow(replay, steep, 0.001, 395, copied(file))
    replay.begin(file)
    Course().follow(replay, lambda rows: steep(rows) / 2, 0.001, 200, copied(range(6000, 6200)))
    course = Course()
    course.follow(replay, lambda rows: steep(rows) / 2, 0.001, 395, copied(file))
    assert course.passes < course.tokens / 2 / 1.25


def test_what_was_dear_once_is_tried_again() -> None:
    """Passes of two rows were disturbed at first. Nobody knows better until they are run."""
    rng = random.Random(4)
    file = [rng.randrange(3000) for _ in range(400)]
    replay = SpeculationReplay(64, 8192)
    for _ in range(4):
        replay.begin(file)
        Course().follow(replay, dear, 0.001, 1500, spiteful(rng))
    replay.begin(file)
    Course().follow(replay, COSTS["flat"], 0.001, 5000, copied(range(6000, 11_000)))
    replay.begin(file)
    course = Course()
    course.follow(replay, COSTS["flat"], 0.001, 395, copied(file))
    assert course.tokens > 4 * course.passes
