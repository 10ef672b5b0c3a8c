"""Whose turn it is: which source gives which row of a mixture.

Not drawn at random: after n random rows a source of share w is off by about sqrt(n w (1 - w)) rows.
Here it is off by less than one, after every n: the j-th row of a source may come from row
floor(j / w) on and is due before row ceil((j + 1) / w), and the row with the earliest due time goes
first. One processor that serves unit jobs in this order meets every due time if the shares add up
to one (the theory of fair scheduling), and meeting both times is what "off by less than one" says.
The order repeats with the common denominator of the shares, so one period is all that is kept, and
any row is found at once.
"""

import heapq
from collections.abc import Mapping
from fractions import Fraction
from math import isfinite, lcm

import numpy as np

from monolane.errors import ConfigError

# Rows of one period at most: 0.4 s to build and 1.5 MB. Shares with a larger common denominator
# are rounded to this one; percentages with two digits after the point need 10,000 of it.
LONGEST_PERIOD = 1 << 18


class Turns:
    """The order in which sources give rows; a pure function of their weights.

    ``shares`` are the exact shares that it keeps, in the order of the mapping; a source of weight
    zero has no turn. ConfigError: a weight that is negative or no number, or nothing above zero.
    """

    def __init__(self, weights: Mapping[str, float | Fraction]) -> None:
        self.shares = exact_shares(weights)
        self._names = list(self.shares)
        self.period = lcm(*(share.denominator for share in self.shares.values()))
        self._counts = [int(share * self.period) for share in self.shares.values()]
        self._whose = _order(self._counts, self.period)  # [period]
        self._nth = np.zeros(self.period, dtype=np.uint32)  # [period], among its source's own
        for index, count in enumerate(self._counts):
            self._nth[self._whose == index] = np.arange(count)

    def at(self, row: int) -> tuple[str, int]:
        """Return the source of row ``row`` of the mixture, and which of its own rows that is."""
        period, slot = divmod(row, self.period)
        index = int(self._whose[slot])
        return self._names[index], period * self._counts[index] + int(self._nth[slot])

    def before(self, row: int) -> dict[str, int]:
        """Return how many rows each source gives before row ``row``."""
        periods, slot = divmod(row, self.period)
        inside = np.bincount(self._whose[:slot], minlength=len(self._names))
        return {
            name: periods * count + int(begun)
            for name, count, begun in zip(self._names, self._counts, inside, strict=True)
        }


def exact_shares(weights: Mapping[str, float | Fraction]) -> dict[str, Fraction]:
    """Return the shares of the sources that have one, which add up to one; ConfigError."""
    exact = {name: _exact(name, weight) for name, weight in weights.items()}
    total = sum(exact.values())
    if not total:
        raise ConfigError("weights: expected at least one source above 0, got none; name one")
    shares = {name: weight / total for name, weight in exact.items() if weight}
    if lcm(*(share.denominator for share in shares.values())) > LONGEST_PERIOD:
        return _rounded(shares)
    return shares


def _exact(name: str, weight: float | Fraction) -> Fraction:
    if isinstance(weight, bool) or not isinstance(weight, int | float | Fraction):
        raise ConfigError(f"weights: expected a number for {name!r}, got {weight!r}")
    if not isfinite(weight) or weight < 0:
        raise ConfigError(
            f"weights: expected a finite number from 0 on for {name!r}, got {weight}; "
            "0 leaves a source out"
        )
    # Through its spelling: 0.632 is meant as 79/125, not as the float64 next to it.
    return Fraction(repr(weight)) if isinstance(weight, float) else Fraction(weight)


def _rounded(shares: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """Round to multiples of 1 / LONGEST_PERIOD that add up to one, by largest remainder."""
    scaled = {name: share * LONGEST_PERIOD for name, share in shares.items()}
    counts = {name: int(value) for name, value in scaled.items()}
    missing = LONGEST_PERIOD - sum(counts.values())
    for name in sorted(scaled, key=lambda name: counts[name] - scaled[name])[:missing]:
        counts[name] += 1
    if gone := [name for name, count in counts.items() if not count]:
        raise ConfigError(
            f"weights: expected a share of at least 1/{LONGEST_PERIOD} for {gone[0]!r}, got "
            f"{float(shares[gone[0]]):.2g}; raise its weight, or set it to 0"
        )
    return {name: Fraction(count, LONGEST_PERIOD) for name, count in counts.items()}


def _order(counts: list[int], period: int) -> np.ndarray:
    """Return the index of the source of each row [period]: earliest due time first."""
    whose = np.empty(period, dtype=np.uint16)
    given = [0] * len(counts)
    waiting = [(0, index) for index in range(len(counts))]  # (row from which on, source)
    ready: list[tuple[int, int]] = []  # (row before which, source)
    for slot in range(period):
        while waiting and waiting[0][0] <= slot:
            _, index = heapq.heappop(waiting)
            due = -(-(given[index] + 1) * period // counts[index])
            heapq.heappush(ready, (due, index))
        due, index = heapq.heappop(ready)
        assert due > slot
        whose[slot] = index
        given[index] += 1
        heapq.heappush(waiting, (given[index] * period // counts[index], index))
    return whose
