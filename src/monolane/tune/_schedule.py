"""The learning rate over a run: warm up, stay, decay (WSD)."""

from dataclasses import dataclass

from monolane.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Wsd:
    """Linear warm-up, a constant stretch, and a linear decay to zero; all in steps."""

    steps: int
    warmup: int
    decay: int

    def __post_init__(self) -> None:
        if self.steps < 1 or self.warmup < 0 or self.decay < 0:
            raise ConfigError(
                f"schedule: expected at least one step, and warm-up and decay of 0 or more, got "
                f"steps {self.steps}, warm-up {self.warmup}, decay {self.decay}"
            )
        if self.warmup + self.decay > self.steps:
            raise ConfigError(
                f"schedule: expected warm-up and decay within the {self.steps} steps, got "
                f"{self.warmup} and {self.decay}; shorten them, or give more steps"
            )

    @classmethod
    def of(cls, steps: int, warmup_share: float, decay_share: float) -> "Wsd":
        """Lay shares out over ``steps`` steps."""
        return cls(steps, int(warmup_share * steps), int(decay_share * steps))

    def factor(self, step: int) -> float:
        """Return the part of the peak rate that step ``step``, counted from 0, uses."""
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        if step < self.steps - self.decay:
            return 1.0
        return max(0.0, (self.steps - step) / (self.decay + 1))
