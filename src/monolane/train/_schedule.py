"""The learning rate over the run: warm up, stay, decay to zero (WSD).

Not a cosine: a cosine must know the end from the start. Here a run may be shortened or extended
until its decay begins, which is how a run that a busy machine delays still lands in time.
"""

from monolane.train._config import RunConfig, Schedule


def learning_rate(config: RunConfig, index: int) -> float:
    """Return the learning rate of step ``index``, counted from 0.

    Warm-up and decay stop short of 0, which would be a step without an effect.
    """
    schedule, peak = config.schedule, config.optimizer.peak_lr
    if index < schedule.warmup:
        return peak * (index + 1) / (schedule.warmup + 1)
    left = schedule.steps - index
    return peak if left > schedule.decay else peak * left / (schedule.decay + 1)


def first_change(schedule: Schedule) -> int:
    """Return the first step that another number of steps would change, warm-up aside."""
    decay = schedule.steps - schedule.decay
    return min(decay, schedule.short_until) if schedule.short_until else decay
