"""The stop rule, stated before anything was trained, and what it says of differences.

From three blocks on: stop when the paired 99 % interval of delay 2 less dense lies within (-0.01,
+0.02) nats a token, or wholly above +0.02. The last look, after six blocks at most, is at 95 %.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEAST, MOST = 3, 6  # blocks
LOW, HIGH = -0.01, 0.02  # nats a token
# Two-sided points of Student's t for n - 1 degrees of freedom, n = 2 .. 6.
_POINTS = {
    95: (12.706, 4.303, 3.182, 2.776, 2.571),
    99: (63.657, 9.925, 5.841, 4.604, 4.032),
}


@dataclass(frozen=True)
class Interval:
    """A paired difference: its mean and half of its interval, in nats a token."""

    blocks: int
    level: int  # percent
    mean: float
    margin: float  # infinite with less than two blocks

    @property
    def low(self) -> float:
        """The lower end."""
        return self.mean - self.margin

    @property
    def high(self) -> float:
        """The upper end."""
        return self.mean + self.margin

    def __str__(self) -> str:
        half = f" ± {self.margin:.4f} ({self.level} %)" if math.isfinite(self.margin) else ""
        return f"{self.mean:+.4f}{half}"


@dataclass(frozen=True)
class Look:
    """What the rule says now."""

    interval: Interval | None
    stop: bool
    text: str


def interval(differences: Sequence[float], level: int) -> Interval:
    """Return the interval of the mean; at least one difference, at most six."""
    count = len(differences)
    if not 1 <= count <= MOST:
        raise ValueError(f"expected 1 to {MOST} differences, got {count}; look at fewer blocks")
    mean = statistics.fmean(differences)
    if count == 1:
        return Interval(1, level, mean, math.inf)
    spread = statistics.stdev(differences) / math.sqrt(count)
    return Interval(count, level, mean, _POINTS[level][count - 2] * spread)


def look(differences: Sequence[float], last: bool = False) -> Look:
    """Apply the rule to delay 2 less dense; ``last``: no further block will come."""
    last = last or len(differences) >= MOST
    if not differences:
        return Look(None, False, "no block is done: nothing can be said")
    found = interval(differences, 95 if last else 99)
    if found.blocks < LEAST:
        return Look(found, False, f"{found.blocks} of {LEAST} blocks are done: too few to look")
    if found.low > LOW and found.high < HIGH:
        return Look(found, True, f"stop: {found} lies within ({LOW:+.2f}, {HIGH:+.2f})")
    if found.low > HIGH:
        return Look(found, True, f"stop: {found} lies wholly above {HIGH:+.2f}")
    if last:
        return Look(found, True, f"stop: not settled by {found.blocks} blocks: {found}")
    return Look(found, False, f"go on: {found} is neither within the bounds nor above them")
