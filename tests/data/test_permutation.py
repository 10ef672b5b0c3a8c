"""The computed order is an order: each number once, other orders for other keys, no pattern."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolane.data._permutation import Permutation


@settings(deadline=None)
@given(st.integers(1, 700), st.binary(max_size=8))
def test_every_number_comes_once(size: int, key: bytes) -> None:
    order = Permutation(size, key)
    assert sorted(order[place] for place in range(size)) == list(range(size))


@settings(deadline=None)
@given(st.integers(1, 1 << 48), st.data())
def test_large_orders_need_no_table(size: int, data: st.DataObject) -> None:
    order = Permutation(size, b"key")
    places = data.draw(st.sets(st.integers(0, size - 1), max_size=8))
    numbers = [order[place] for place in places]
    assert len(set(numbers)) == len(places)
    assert all(0 <= number < size for number in numbers)


def test_places_outside_are_refused() -> None:
    for place in (-1, 5):
        with pytest.raises(IndexError):
            Permutation(5, b"")[place]


def test_the_order_stays_the_same_from_version_to_version() -> None:
    """A run of months resumes with a newer monolane, and must go on in the order it began."""
    assert [Permutation(10, b"monolane")[place] for place in range(10)] == GOLDEN


def test_small_orders_are_all_about_equally_likely() -> None:
    """24 orders of 4, 4,800 keys: 200 each expected; chi-squared of 23 degrees, p = 10^-6: 73."""
    counts: dict[tuple[int, ...], int] = {}
    for key in range(4800):
        order = Permutation(4, key.to_bytes(4, "little"))
        seen = tuple(order[place] for place in range(4))
        counts[seen] = counts.get(seen, 0) + 1
    assert len(counts) == 24
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 73


def test_places_do_not_tell_numbers() -> None:
    """Correlation of n pairs has a standard deviation of 1 / sqrt(n); 5 of them are allowed."""
    size = 3000
    for key in (b"a", b"b"):
        numbers = np.array([Permutation(size, key)[place] for place in range(size)])
        assert abs(np.corrcoef(numbers, np.arange(size))[0, 1]) < 5 / np.sqrt(size)
        assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 5 / np.sqrt(size)


GOLDEN = [9, 2, 8, 3, 6, 1, 0, 7, 5, 4]
