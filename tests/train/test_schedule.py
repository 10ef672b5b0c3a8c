import pytest

from monolane.errors import ConfigError
from monolane.train import DemoRecipe
from monolane.train._schedule import Schedule


def test_values_of_each_stretch() -> None:
    schedule = Schedule(peak_lr=1.0, steps=20, warmup=3, decay=4, long=5)
    rates = [schedule.learning_rate(step) for step in range(20)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[3:16] == [1.0] * 13
    assert rates[16:] == pytest.approx([0.8, 0.6, 0.4, 0.2])
    assert (schedule.decay_start, schedule.long_start, schedule.first_change) == (16, 15, 15)


def test_shares_become_steps() -> None:
    recipe = DemoRecipe(warmup_share=0.02, decay_share=0.3, long_share=0.25)
    schedule = Schedule.of(recipe, 1000)
    assert (schedule.warmup, schedule.decay, schedule.long) == (20, 300, 250)


def test_one_step_is_a_run_and_none_is_not() -> None:
    assert Schedule.of(DemoRecipe(), 1).learning_rate(0) == DemoRecipe().peak_lr
    with pytest.raises(ConfigError, match="at least one step"):
        Schedule.of(DemoRecipe(), 0)


def test_a_longer_run_is_the_same_until_the_first_change() -> None:
    short, long = (Schedule.of(DemoRecipe(warmup_share=0.0), steps) for steps in (100, 200))
    same = [short.learning_rate(s) == long.learning_rate(s) for s in range(100)]
    assert same == [step < short.decay_start for step in range(100)]
