"""The learning rate over the run: warm up, stay, decay to zero (WSD).

Not a cosine: a cosine must know the end from the start. Here a run may be shortened or extended
until its decay begins, which is how a run that a busy machine delays still lands in time.
"""

from dataclasses import dataclass

from monolane.errors import ConfigError
from monolane.train._recipe import DemoRecipe


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, a constant stretch, and a linear decay that reaches zero after the end."""

    peak_lr: float
    steps: int
    warmup: int  # steps
    decay: int  # steps
    long: int  # steps at the full context, at the end

    def __post_init__(self) -> None:
        if self.steps < 1 or self.warmup + self.decay > self.steps:
            raise ConfigError(
                "schedule: expected at least one step, and warm-up and decay within the steps, "
                f"got steps {self.steps}, warm-up {self.warmup}, decay {self.decay}; "
                "give more steps or minutes"
            )

    @classmethod
    def of(cls, recipe: DemoRecipe, steps: int) -> "Schedule":
        """Lay the recipe's shares out over ``steps`` steps."""
        return cls(
            peak_lr=recipe.peak_lr,
            steps=steps,
            warmup=int(recipe.warmup_share * steps),
            decay=int(recipe.decay_share * steps),
            long=int(recipe.long_share * steps),
        )

    @property
    def decay_start(self) -> int:
        """First step of the decay."""
        return self.steps - self.decay

    @property
    def long_start(self) -> int:
        """First step at the full context."""
        return self.steps - self.long

    @property
    def first_change(self) -> int:
        """First step that another number of steps would change, warm-up aside."""
        return min(self.decay_start, self.long_start)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of step ``step``, counted from 0."""
        if step < self.warmup:
            return self.peak_lr * (step + 1) / (self.warmup + 1)
        if step < self.decay_start:
            return self.peak_lr
        return self.peak_lr * (self.steps - step) / (self.decay + 1)
