"""Rotary position embedding: which pairs of a head turn together, how fast, and how far.

A checkpoint for long contexts names a stretch of the frequencies that its family was trained with.
There is one class for each, so that a formula and its numbers stay together.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from monolane.errors import ConfigError

# "interleaved" turns the pairs (x0, x1), (x2, x3), ...; "half" (x0, x_h/2), (x1, x_h/2+1), ...
PairStyle = Literal["interleaved", "half"]
Frequencies = npt.NDArray[np.float64]  # [head_dim / 2], radians per position


class RotaryScaling(ABC):
    """A stretch of the frequencies for contexts longer than the trained one."""

    __slots__ = ()

    @abstractmethod
    def stretch(self, frequency: Frequencies, theta: float) -> Frequencies:
        """Return the frequencies that ``theta ** (-2 i / head_dim)`` become: [head_dim / 2]."""


@dataclass(frozen=True, slots=True)
class LinearScaling(RotaryScaling):
    """Position interpolation: every wavelength is stretched by ``factor`` (arXiv:2306.15595)."""

    factor: float

    def stretch(self, frequency: Frequencies, theta: float) -> Frequencies:
        """Divide all frequencies."""
        return frequency / self.factor


@dataclass(frozen=True, slots=True)
class Llama3Scaling(RotaryScaling):
    """Llama 3's stretch.

    Wavelengths above original_context / low_frequency_factor are stretched by ``factor``, those
    below original_context / high_frequency_factor are kept, and between them the two blend.
    """

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_context: int

    def __post_init__(self) -> None:
        if self.high_frequency_factor < self.low_frequency_factor:
            raise ConfigError(
                "rotary scaling: expected high_freq_factor to be at least low_freq_factor, got "
                f"{self.high_frequency_factor} and {self.low_frequency_factor}"
            )

    def stretch(self, frequency: Frequencies, theta: float) -> Frequencies:
        """Blend kept and stretched frequencies by the turns within the trained context."""
        turns = self.original_context * frequency / (2 * math.pi)
        low, high = self.low_frequency_factor, self.high_frequency_factor
        # Where the two are one, as in Llama 4, nothing lies between them.
        keep = np.clip((turns - low) / (high - low), 0, 1) if high > low else turns > low
        return keep * frequency + (1 - keep) * frequency / self.factor


@dataclass(frozen=True, slots=True)
class YarnScaling(RotaryScaling):
    """YaRN (arXiv:2309.00071), by parts of the head as Transformers computes it.

    Pairs that turn at least ``beta_fast`` times within the trained context are kept, those that
    turn at most ``beta_slow`` times are stretched by ``factor``. Between them the two blend, by the
    pair's number. Cosine and sine are multiplied by ``amplitude``.
    """

    factor: float
    original_context: int
    amplitude: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True  # the blend begins and ends at whole pairs

    def __post_init__(self) -> None:
        for name in ("beta_fast", "beta_slow"):
            if not 1e-6 <= getattr(self, name) <= 1e6:
                raise ConfigError(
                    f"rotary scaling: expected {name} from 1e-6 to 1e6 turns, got "
                    f"{getattr(self, name)}"
                )
        if self.beta_fast < self.beta_slow:
            raise ConfigError(
                "rotary scaling: expected beta_fast to be at least beta_slow, got "
                f"{self.beta_fast} and {self.beta_slow}"
            )

    def stretch(self, frequency: Frequencies, theta: float) -> Frequencies:
        """Blend kept and stretched frequencies by the number of the pair."""
        pairs = len(frequency)
        first = self._pair(self.beta_fast, pairs, theta)
        last = self._pair(self.beta_slow, pairs, theta)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        # The bounds, and the width of an empty blend, are those of Transformers.
        first, last = max(first, 0), min(last, 2 * pairs - 1)
        width = last - first if last != first else 0.001
        stretched = np.clip((np.arange(pairs) - first) / width, 0.0, 1.0)
        found: Frequencies = frequency * (1 - stretched) + frequency / self.factor * stretched
        return found

    def _pair(self, turns: float, pairs: int, theta: float) -> float:
        """Return the number of the pair that turns so often within the trained context."""
        return pairs * math.log(self.original_context / (turns * 2 * math.pi)) / math.log(theta)


@dataclass(frozen=True, slots=True)
class ProportionalScaling(RotaryScaling):
    """The first ``part`` of the pairs turn, as they do where all turn; the others stand still.

    Not as ``Rotary.part``: a pair is that of the whole head. All are stretched by ``factor``.
    """

    part: float
    factor: float = 1.0

    def stretch(self, frequency: Frequencies, theta: float) -> Frequencies:
        """Divide the frequencies of those that turn, and stop the others."""
        turning = np.arange(len(frequency)) < int(self.part * 2 * len(frequency) // 2)
        found: Frequencies = np.where(turning, frequency / self.factor, 0.0)
        return found


@dataclass(frozen=True, slots=True)
class PairScaling(RotaryScaling):
    """A stretch that was worked out beforehand: pair i turns slower by ``divisors[i]``.

    GGUF files of Llama 3 hold its stretch so, in the tensor rope_freqs.weight.
    """

    divisors: tuple[float, ...]  # [head_dim / 2]

    def __post_init__(self) -> None:
        if not all(0 < x < math.inf for x in self.divisors):
            raise ConfigError("rotary scaling: expected divisors of pairs that are above zero")

    def stretch(self, frequency: Frequencies, theta: float) -> Frequencies:
        """Divide each pair's frequency; ConfigError if there is not one divisor for each."""
        return _divided(frequency, self.divisors)


@dataclass(frozen=True, slots=True)
class LongRopeScaling(RotaryScaling):
    """LongRoPE (arXiv:2402.13753): divisors of pairs, others for long sequences than for short.

    Which of them is one choice for a model as it is loaded, by the ``context`` it is loaded for:
    so bits depend on neither the prompt's length nor how it is fed. Transformers chooses in each
    forward, by the tokens so far, and leaves keys that are cached as they are.
    """

    short: tuple[float, ...]  # [head_dim / 2]
    long: tuple[float, ...]  # of contexts beyond the original one
    original_context: int
    amplitude: float
    context: int | None = None  # None: beyond the original one

    def __post_init__(self) -> None:
        if not all(0 < x < math.inf for x in (*self.short, *self.long)):
            raise ConfigError("rotary scaling: expected divisors of pairs that are above zero")

    def stretch(self, frequency: Frequencies, theta: float) -> Frequencies:
        """Divide each pair's frequency; ConfigError if there is not one divisor for each."""
        fits = self.context is not None and self.context <= self.original_context
        return _divided(frequency, self.short if fits else self.long)


def _divided(frequency: Frequencies, divisors: tuple[float, ...]) -> Frequencies:
    if len(divisors) != len(frequency):
        raise ConfigError(
            f"rotary scaling: expected {len(frequency)} divisors, one for each pair of a head, "
            f"got {len(divisors)}"
        )
    found: Frequencies = frequency / np.array(divisors)
    return found


@dataclass(frozen=True, slots=True)
class Rotary:
    """Base frequency, pairing and stretch of the rotary embedding."""

    theta: float = 10000.0
    style: PairStyle = "interleaved"
    scaling: RotaryScaling | None = None
    part: float = 1.0  # of a head, the first of its numbers; the others are not turned

    def __post_init__(self) -> None:
        if not 0 < self.part <= 1:
            raise ConfigError(f"rotary: expected a part of a head above 0, to 1, got {self.part}")
        if isinstance(self.scaling, YarnScaling) and self.theta <= 1:
            raise ConfigError(
                f"rotary scaling: expected rope_theta above 1 with YaRN, got {self.theta}"
            )

    @property
    def amplitude(self) -> float:
        """Factor of cosine and sine, and so of queries and keys; 1 but for YaRN and LongRoPE."""
        if isinstance(self.scaling, YarnScaling | LongRopeScaling):
            return self.scaling.amplitude
        return 1.0

    def turned(self, head_dim: int) -> int:
        """Return how many of a head's numbers are turned."""
        return int(head_dim * self.part)  # as Transformers rounds it

    def frequencies(self, head_dim: int) -> npt.NDArray[np.float32]:
        """Return the angle per position of each pair, in radians: float32 [head_dim / 2].

        ``head_dim`` counts what is turned of a head. Computed in float64 and rounded once, so that
        every executor starts from the same numbers. ConfigError if some of them are none.
        """
        with np.errstate(all="ignore"):
            frequency = self.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
            if self.scaling is not None:
                frequency = self.scaling.stretch(frequency, self.theta)
            found = frequency.astype(np.float32)
        if not np.isfinite(found).all():
            raise ConfigError(
                "rotary: expected rope_theta and rope_scaling that give each pair of a head a "
                f"finite frequency, got rope_theta {self.theta:g} and {self.scaling}"
            )
        return found
