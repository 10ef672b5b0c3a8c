"""A probe's share of the wall time: repeats go first, then whole variants, and both are said."""

from __future__ import annotations

import time
from collections.abc import Callable


class Budget:
    """`seconds` from now. `progress` tells it how much of the probe's list is done (0 to 1)."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._start = clock()
        self.progress = 0.0

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._start

    @property
    def exhausted(self) -> bool:
        """Nothing more may be started."""
        return self.spent >= self.seconds

    def repeats(self, wanted: int, least: int = 2) -> int:
        """`wanted`, or `least` once time runs ahead of progress by a fifth of the budget."""
        behind = self.spent / self.seconds - self.progress if self.seconds > 0 else 1.0
        return wanted if behind < 0.2 else min(wanted, least)


def slices(seconds: float, weights: list[float]) -> float:
    """The share of the first of several probes still to run."""
    return seconds * weights[0] / sum(weights)
