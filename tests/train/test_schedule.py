from dataclasses import replace

import pytest

from monolane.errors import ConfigError
from monolane.train import RunConfig, load_config
from monolane.train._config import Schedule
from monolane.train._schedule import first_change, learning_rate


def _config(schedule: Schedule) -> RunConfig:
    config = load_config("tiny")
    return replace(config, schedule=schedule, optimizer=replace(config.optimizer, peak_lr=1.0))


def test_values_of_each_stretch() -> None:
    config = _config(Schedule(steps=20, warmup=3, decay=4))
    rates = [learning_rate(config, step) for step in range(20)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[3:16] == [1.0] * 13
    assert rates[16:] == pytest.approx([0.8, 0.6, 0.4, 0.2])


def test_one_step_is_a_run_and_none_is_not() -> None:
    assert learning_rate(_config(Schedule(steps=1)), 0) == 1.0
    with pytest.raises(ConfigError, match=r"schedule\.steps: expected more than 0, got 0"):
        Schedule(steps=0)
    with pytest.raises(ConfigError, match=r"warmup \+ decay within the steps, got 6 \+ 5 of 10"):
        Schedule(steps=10, warmup=6, decay=5)


def test_another_length_is_the_same_run_until_the_first_change() -> None:
    short, long = (_config(Schedule(steps=steps, decay=30)) for steps in (100, 200))
    same = [learning_rate(short, s) == learning_rate(long, s) for s in range(100)]
    assert same == [step < first_change(short.schedule) for step in range(100)]
    rows = Schedule(steps=100, decay=30, short_until=50, short_length=16)
    assert first_change(rows) == 50
