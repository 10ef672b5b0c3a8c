"""What a pass of rows is taken to cost that was not run yet: of a mixture what it has to read.

Without a clock: the test says what passes took.
"""

import random

import pytest

from monolane._core import PassCost

GUESS = 0.05  # csrc/draft/pass_cost.cpp: of a row, beside what it has to read


def union(width: int) -> float:
    """Of 256 experts with 8 chosen, which are 70 % of what a pass of one row reads."""
    return 0.3 + 0.7 * 256 / 8 * (1 - (1 - 8 / 256) ** width)


READ = [union(width) for width in range(1, 65)]


def known(read: list[float], **took: float) -> PassCost:
    cost = PassCost(64, read)
    for width, each in took.items():
        for _ in range(3):
            cost.add(int(width.removeprefix("w")), round(each))
    return cost


def test_of_a_dense_model_it_is_as_without() -> None:
    for took in ({"w1": 1000}, {"w1": 1000, "w4": 2900}, {"w2": 1500, "w8": 3000}):
        plain, even = known([], **took), known([1.0] * 64, **took)
        assert [plain.of(w) for w in range(1, 65)] == [even.of(w) for w in range(1, 65)]
    line = known([], w1=1000, w4=2800)
    assert [round(line.of(width)) for width in (2, 3, 5, 6)] == [1600, 2200, 3100, 3400]


def test_what_was_never_run_reads_the_expected_union() -> None:
    cost = known(READ, w1=1000)
    for width in (2, 4, 16, 64):
        assert cost.of(width) == pytest.approx(1000 * (union(width) + GUESS * (width - 1)))
    assert known([], w1=1000).of(2) == pytest.approx(1050)  # what it is thought to cost else


def test_between_two_widths_it_bends_as_the_union_does() -> None:
    def true(width: int) -> float:  # with something that no row adds to
        return 300 + 1000 * (union(width) + GUESS * (width - 1))

    took = {f"w{width}": true(width) for width in (1, 64)}
    for width in (2, 4, 8, 32):
        assert known(READ, **took).of(width) == pytest.approx(true(width), rel=1e-3)  # whole ns
    assert known([], **took).of(8) < 0.8 * true(8)


def test_rows_that_choose_alike_are_believed() -> None:
    """Two rows took hardly more than one: then four are not taken to read all that they might."""
    cost = known(READ, w1=1000, w2=1100)
    assert 1100 < cost.of(4) < 1400 < 1000 * union(4)
    assert known(READ, w1=1000, w2=900).of(4) >= 900  # nor less than nothing


def test_a_machine_that_changes_its_speed_moves_all_widths_once() -> None:
    """Two rows are run at first alone, and follow what others take: 20 % more than one."""
    rng = random.Random(1)

    def took(width: int, slow: bool) -> int:
        return round((1000 + 200 * (width - 1)) * (1.3 if slow else 1.0) * rng.uniform(0.97, 1.06))

    cost = PassCost(64)
    for width in (1, 2, 8, 16, 32):
        for _ in range(60):
            cost.add(width, took(width, slow=False))
    for _ in range(20):
        for at in range(200):
            width = rng.choice((1, 4, 5, 6, 7, 8, 12, 16, 24, 32))
            cost.add(width, took(width, slow=at < 100))
        for _ in range(100):
            cost.add(1, took(1, slow=True))
        assert cost.of(2) / cost.of(1) == pytest.approx(1.2, rel=0.1)
