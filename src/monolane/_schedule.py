"""The learning rate over a run: warm up, stay, decay to zero (WSD).

Not a cosine: a cosine must know the end from the start. Here a run may be shortened or extended
until its decay begins, which is how a run that a busy machine delays still lands in time.
"""

from pydantic import NonNegativeInt, PositiveInt

from monolane._toml import config
from monolane.errors import ConfigError


@config
class Wsd:
    """Linear warm-up from 0, a constant stretch and a linear decay to 0, in optimizer steps."""

    steps: PositiveInt
    warmup: NonNegativeInt = 0
    decay: NonNegativeInt = 0

    def __post_init__(self) -> None:
        if self.warmup + self.decay > self.steps:
            raise ConfigError(
                "schedule: expected warmup + decay within the steps, got "
                f"{self.warmup} + {self.decay} of {self.steps}; give more steps or shorten them"
            )

    @classmethod
    def of(cls, steps: int, warmup_share: float, decay_share: float) -> "Wsd":
        """Lay shares out over ``steps`` steps."""
        return cls(steps, int(warmup_share * steps), int(decay_share * steps))

    def rate(self, peak: float, step: int) -> float:
        """Return the learning rate of step ``step``, counted from 0.

        Warm-up and decay stop short of 0, which would be a step without an effect.
        """
        if step < self.warmup:
            return peak * (step + 1) / (self.warmup + 1)
        left = self.steps - step
        return peak if left > self.decay else peak * left / (self.decay + 1)
