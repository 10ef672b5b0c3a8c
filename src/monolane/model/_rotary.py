"""Rotary position embedding: which pairs of a head turn together, and how fast."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from monolane.errors import ConfigError

# "interleaved" turns the pairs (x0, x1), (x2, x3), ...; "half" (x0, x_h/2), (x1, x_h/2+1), ...
PairStyle = Literal["interleaved", "half"]


@dataclass(frozen=True, slots=True)
class RotaryScaling:
    """Llama 3's stretch for contexts longer than the trained one.

    Wavelengths above original_context / low_frequency_factor are stretched by ``factor``, those
    below original_context / high_frequency_factor are kept, and between them the two blend.
    """

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_context: int

    def __post_init__(self) -> None:
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise ConfigError(
                "rotary scaling: expected high_freq_factor above low_freq_factor, got "
                f"{self.high_frequency_factor} and {self.low_frequency_factor}"
            )


@dataclass(frozen=True, slots=True)
class Rotary:
    """Base frequency, pairing and stretch of the rotary embedding."""

    theta: float = 10000.0
    style: PairStyle = "interleaved"
    scaling: RotaryScaling | None = None

    def frequencies(self, head_dim: int) -> npt.NDArray[np.float32]:
        """Return the angle per position of each pair, in radians: float32 [head_dim / 2].

        Computed in float64 and rounded once, so that every executor starts from the same numbers.
        """
        frequency = self.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
        if self.scaling is not None:
            frequency = _stretch(frequency, self.scaling)
        return frequency.astype(np.float32)


def _stretch(frequency: npt.NDArray[np.float64], scaling: RotaryScaling) -> npt.NDArray[np.float64]:
    turns = scaling.original_context * frequency / (2 * math.pi)  # within the trained context
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return keep * frequency + (1 - keep) * frequency / scaling.factor
