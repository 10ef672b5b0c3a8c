import pytest

from monolane.errors import ConfigError
from monolane.train._config import Schedule


def test_values_of_each_stretch() -> None:
    schedule = Schedule(steps=20, warmup=3, decay=4)
    rates = [schedule.rate(1.0, step) for step in range(20)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[3:16] == [1.0] * 13
    assert rates[16:] == pytest.approx([0.8, 0.6, 0.4, 0.2])


def test_one_step_is_a_run_and_none_is_not() -> None:
    assert Schedule(steps=1).rate(1.0, 0) == 1.0
    with pytest.raises(ConfigError, match=r"steps: expected more than 0, got 0"):
        Schedule(steps=0)
    with pytest.raises(ConfigError, match=r"warmup \+ decay within the steps, got 6 \+ 5 of 10"):
        Schedule(steps=10, warmup=6, decay=5)


def test_another_length_is_the_same_run_until_the_first_change() -> None:
    short, long = (Schedule(steps=steps, decay=30) for steps in (100, 200))
    same = [short.rate(1.0, s) == long.rate(1.0, s) for s in range(100)]
    assert same == [step < short.first_change for step in range(100)]
    rows = Schedule(steps=100, decay=30, short_until=50, short_length=16)
    assert rows.first_change == 50
