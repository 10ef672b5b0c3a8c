"""Each source gives its share of the rows, to within one row, after any number of rows."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from monolane.data._interleave import LONGEST_PERIOD, Turns
from monolane.errors import ConfigError

WEIGHTS = st.lists(st.integers(1, 60), min_size=1, max_size=7)


@settings(deadline=None)
@given(WEIGHTS)
@example([632, 210, 63, 50, 45])  # the percentages of the seed's two phases, in thousandths
@example([1000, 5901, 3001, 100])
@example([97, 1, 1, 1])
def test_no_source_is_ever_a_row_off(weights: list[int]) -> None:
    turns = Turns({str(index): weight for index, weight in enumerate(weights)})
    given_rows = dict.fromkeys(turns.shares, 0)
    for row in range(2 * turns.period + 3):
        name, nth = turns.at(row)
        assert nth == given_rows[name]
        given_rows[name] += 1
        for other, share in turns.shares.items():
            assert abs(given_rows[other] - share * (row + 1)) < 1
    assert turns.before(row + 1) == given_rows


@settings(deadline=None)
@given(WEIGHTS, st.integers(0, 10**15))
def test_any_row_is_found_at_once(weights: list[int], row: int) -> None:
    turns = Turns({str(index): weight for index, weight in enumerate(weights)})
    name, nth = turns.at(row)
    assert turns.before(row)[name] == nth
    assert sum(turns.before(row).values()) == row


def test_decimal_weights_are_exact() -> None:
    shares = Turns({"web": 63.2, "code": 21.0, "math": 6.3, "many": 5.0, "qa": 4.5}).shares
    assert shares["web"] == Fraction(632, 1000)
    assert sum(shares.values()) == 1


def test_shares_that_no_period_holds_are_rounded() -> None:
    turns = Turns({"a": 1 / 3 + 1e-9, "b": np.float64(1 / 7).item(), "c": 1e-4 * 2**0.5})
    assert turns.period <= LONGEST_PERIOD
    total = 1 / 3 + 1e-9 + 1 / 7 + 1e-4 * 2**0.5
    assert abs(float(turns.shares["a"]) - (1 / 3 + 1e-9) / total) < 1 / LONGEST_PERIOD
    assert sum(turns.shares.values()) == 1


def test_a_weight_of_nothing_leaves_a_source_out() -> None:
    turns = Turns({"a": 1, "b": 0})
    assert list(turns.shares) == ["a"]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "expected at least one source above 0"),
        ({"a": 0}, "expected at least one source above 0"),
        ({"a": -1}, "from 0 on for 'a', got -1"),
        ({"a": float("nan")}, "a finite number from 0 on for 'a'"),
        ({"a": "x"}, "expected a number for 'a', got 'x'"),
        ({"a": True}, "expected a number for 'a', got True"),
        ({"a": 1, "b": 1e-9 / 3}, "expected a share of at least 1/262144 for 'b'"),
    ],
)
def test_weights_that_cannot_be(weights: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Turns(weights)
