"""Where a loss goes with more tokens: loss = floor + rise * (tokens / first) ** -power.

The loss is what is left of the source: the divergence from it. A power law with a floor is what
losses of language models follow over orders of magnitude; over one it is a way to draw a line, and
how well a shorter line foretells the longest run says what it is worth.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_POWERS = np.geomspace(0.02, 3.0, 600)


@dataclass(frozen=True)
class Fall:
    """A fitted line."""

    first: float  # tokens at which ``rise`` counts
    floor: float
    rise: float
    power: float

    def at(self, tokens: float) -> float:
        """Return the loss after so many tokens."""
        return float(self.floor + self.rise * (tokens / self.first) ** -self.power)


def fall(tokens_N: Sequence[float], losses_N: Sequence[float]) -> Fall:
    """Return the line of least squares, its floor not below zero. Takes three points or more."""
    if len(tokens_N) < 3:
        raise ValueError(f"expected three points or more, got {len(tokens_N)}")
    losses = np.asarray(losses_N, np.float64)
    times = np.asarray(tokens_N, np.float64) / tokens_N[0]
    best, least = Fall(tokens_N[0], 0.0, 0.0, 0.0), np.inf
    for power in _POWERS:
        shape = times**-power
        (floor, rise), *_ = np.linalg.lstsq(np.stack([np.ones_like(shape), shape], 1), losses)
        if floor < 0:
            floor, rise = 0.0, float(losses @ shape / (shape @ shape))
        error = float(np.square(floor + rise * shape - losses).sum())
        if error < least:
            best, least = Fall(tokens_N[0], float(floor), float(rise), float(power)), error
    return best


def floors(tokens_N: Sequence[float], losses_N: Sequence[float], off: float) -> tuple[float, float]:
    """Return the least and the largest floor where each loss is right, or ``off`` nats off."""
    found = [
        fall(
            tokens_N, [loss + off * side for loss, side in zip(losses_N, sides, strict=True)]
        ).floor
        for sides in itertools.product((-1, 0, 1), repeat=len(losses_N))
    ]
    return min(found), max(found)
