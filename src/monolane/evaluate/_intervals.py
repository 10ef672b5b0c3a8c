"""How far a figure may lie from what more items would give: 95 % intervals."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

_Z = 1.959963984540054  # two-sided 95 % of the normal distribution
_RESAMPLES = 2000
WILSON, BOOTSTRAP = "Wilson 95 %", "bootstrap 95 %"


class Interval(NamedTuple):
    """Where a figure may lie, and by which method; None: so few items do not tell."""

    low: float | None
    high: float | None
    how: str

    def of(self, change: Callable[[float], float]) -> "Interval":
        """Return that of what ``change`` makes of the figure."""
        if self.low is None or self.high is None:
            return self
        return Interval(change(self.low), change(self.high), self.how)


def percent(share: float) -> float:
    """Return a share in percent."""
    return 100 * share


def wilson(successes: int, count: int) -> tuple[float, float]:
    """Return Wilson's score interval of a share; it is right near 0 and 1, and for few items."""
    if not 0 <= successes <= count or count < 1:
        raise ValueError(f"wilson: expected 0 <= successes <= count, got {successes} of {count}")
    share, z2 = successes / count, _Z * _Z
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    low = 0.0 if successes == 0 else middle - half
    return low, 1.0 if successes == count else middle + half


def bootstrap(
    rows: Sequence[Sequence[float]], statistic: Callable[[np.ndarray], float]
) -> Interval:
    """Return the percentile interval of a statistic of items that are drawn again; seed 0.

    ``statistic`` gets the mean of the drawn rows. One item drawn again is itself: it tells nothing.
    """
    if len(rows) < 2:
        return Interval(None, None, BOOTSTRAP)
    table = np.asarray(rows, dtype=np.float64)
    rng = np.random.default_rng(0)
    found = [
        statistic(table[rng.integers(len(table), size=len(table))].mean(axis=0))
        for _ in range(_RESAMPLES)
    ]
    low, high = np.percentile(found, [2.5, 97.5])
    return Interval(float(low), float(high), BOOTSTRAP)


def resampled_shares(shares: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return shares [2,000, tasks] of items drawn again, task by task, seed 0.

    Of ``counts`` items of 0 or 1 that is a binomial draw.
    """
    size = (_RESAMPLES, len(shares))
    drawn: np.ndarray = np.random.default_rng(0).binomial(counts, shares, size=size) / counts
    return drawn


def ratio_interval(
    parts: Sequence[float], wholes: Sequence[float], share: bool = False
) -> Interval:
    """Return the interval of sum(parts) / sum(wholes) over items.

    ``share``: each part is some of its whole. Where all items have all of it, or none, drawing them
    again shows nothing: there it is Wilson's, as of items that are right or wrong.
    """
    count = len(parts)
    if share and (not any(parts) or list(parts) == list(wholes)):
        return Interval(*wilson(count if any(parts) else 0, count), WILSON)
    rows = list(zip(parts, wholes, strict=True))
    return bootstrap(rows, lambda mean: float(mean[0] / mean[1]))


def mean_interval(scores: Sequence[float]) -> Interval:
    """Return the interval of a mean of shares, from 0 to 1.

    Wilson's where all are 0 or 1, else the bootstrap.
    """
    if all(score in (0, 1) for score in scores):
        return Interval(*wilson(int(sum(scores)), len(scores)), WILSON)
    return bootstrap([[score] for score in scores], lambda mean: float(mean[0]))
