"""Made curves: real spikes are found in time, and healthy curves, however rough, are left alone."""

import json
import math
import random
from collections.abc import Iterable

import pytest

from monolane.errors import ConfigError, TrainingError
from monolane.train._config import GuardConfig
from monolane.train._guard import SpikeGuard
from monolane.train._record import StepRecord


def record(step: int, loss: float, norm: float = 1.0) -> StepRecord:
    return StepRecord(step, loss, 0.0, norm, 1e-3, step * 100, 1e3, None, 0.1)


def alarms(guard: SpikeGuard, losses: Iterable[float], first: int = 1) -> list[int]:
    return [s for s, loss in enumerate(losses, first) if guard.observe(record(s, loss))]


def healthy(steps: int, seed: int, noise: float = 0.05) -> list[float]:
    """A power law with noise whose tails are heavy (Student's t, 3 degrees) and that lingers."""
    rng = random.Random(seed)
    losses, slow = [], 0.0
    for step in range(steps):
        heavy = rng.gauss(0, 1) / math.sqrt(rng.gammavariate(1.5, 2 / 3) + 1e-9)
        slow = 0.9 * slow + 0.3 * noise * rng.gauss(0, 1)
        losses.append(2.0 + 7.0 * (step + 3) ** -0.5 + noise * heavy + slow)
    return losses


@pytest.mark.parametrize("noise", [0.003, 0.03, 0.15])
def test_healthy_curves_raise_no_alarm(noise: float) -> None:
    for seed in range(12):
        assert alarms(SpikeGuard(), healthy(2000, seed, noise)) == []


@pytest.mark.parametrize("noise", [0.003, 0.03, 0.15])
@pytest.mark.parametrize("shape", ["jump", "ramp", "spike that falls back slowly"])
def test_spikes_are_found_within_a_few_steps(noise: float, shape: str) -> None:
    for seed in range(12):
        losses = healthy(900, seed, noise)
        for at in range(700, 900):
            since = at - 700 + 1
            losses[at] += {
                "jump": 3.0,
                "ramp": 0.2 * since,
                "spike that falls back slowly": 3.0 * 0.98**since,
            }[shape]
        guard = SpikeGuard()
        found = []
        for step, loss in enumerate(losses, 1):
            if guard.observe(record(step, loss)):
                found.append(step)
                break  # the run would go back
        (step,) = found
        # A ramp has to rise above 7 robust sigmas of the noise first.
        slack = 7 if shape != "ramp" else 7 + math.ceil(7 * 2.5 * noise / 0.2)
        assert 700 < step <= 700 + slack
        assert 700 < guard.onset <= step


def test_the_last_losses_are_not_history_yet() -> None:
    """32 losses make a history, and the 7 after them are what it judges."""
    guard = SpikeGuard()
    alarms(guard, [3.0] * 38)
    assert guard.limits() is None
    alarms(guard, [2.0] * 1, 39)
    assert guard.limits() == (3.0 - 0.15, 3.0 + 0.15)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_skipped_alone_and_a_spike_in_numbers(value: float) -> None:
    """It has updated nothing; four of seven are a spike, also before there is a history."""
    guard = SpikeGuard()
    assert alarms(guard, [3.0, value, 3.0, value, 3.0, value]) == []
    again = SpikeGuard()
    again.load(json.loads(json.dumps(guard.state())))  # as a checkpoint keeps it
    assert again.observe(record(7, 3.0, norm=value))
    assert again.onset == 2
    guard = SpikeGuard()
    for step in range(1, 400):
        assert not guard.observe(record(step, value if step % 5 == 0 else 3.0))
    assert guard.limits() == (3.0 - 0.15, 3.0 + 0.15)  # no part of the history


def test_a_few_bad_batches_are_no_spike() -> None:
    losses = healthy(1500, 5)
    for at in range(100, 1500, 40):
        losses[at] += 4.0
        losses[at + 1] += 4.0
        losses[at + 3] += 4.0  # three of seven: not the majority
    assert alarms(SpikeGuard(), losses) == []


def test_a_new_mixture_that_lowers_the_loss_is_no_spike_and_the_next_spike_is_one() -> None:
    for seed in range(12):
        losses = healthy(1200, seed)
        losses[600:] = [loss - 1.2 for loss in losses[600:]]  # phase 2
        losses[680:700] = [loss + 1.0 for loss in losses[680:700]]  # below what phase 1 was
        guard = SpikeGuard()
        assert alarms(guard, losses[:680]) == []
        assert alarms(guard, losses[680:688], 681)[:1] != []


def test_changes_of_the_learning_rate_are_no_spikes() -> None:
    decayed = [loss - 0.0015 * max(0, at - 600) for at, loss in enumerate(healthy(1000, 1, 0.02))]
    assert alarms(SpikeGuard(), decayed) == []
    # Warmed up again after a decay: up by 0.25 nats over 400 steps.
    warmed = [
        loss + 0.25 * min(1.0, max(0, at - 600) / 400)
        for at, loss in enumerate(healthy(1200, 2, 0.02))
    ]
    assert alarms(SpikeGuard(), warmed) == []


def test_a_known_rise_is_forgiven_where_it_is_told() -> None:
    losses = healthy(1000, 3)
    losses[500:] = [loss + 1.5 for loss in losses[500:]]
    assert alarms(SpikeGuard(), losses[:504]) == [504]
    guard = SpikeGuard()
    assert alarms(guard, losses[:500]) == []
    guard.forget()
    assert alarms(guard, losses[500:], 501) == []


def test_its_state_is_json_and_goes_on_as_if_nothing_had_been() -> None:
    losses = healthy(600, 4)
    losses[400:] = [loss + 2.0 for loss in losses[400:]]
    whole = SpikeGuard()
    expected = alarms(whole, losses[:410])
    for cut in (5, 39, 40, 300, 401, 402):
        first, second = SpikeGuard(), SpikeGuard()
        found = alarms(first, losses[:cut])
        second.load(json.loads(json.dumps(first.state())))
        found += alarms(second, losses[cut:410], cut + 1)
        assert found == expected
        assert second.state() == whole.state()


def _spike(guard: SpikeGuard, step: int) -> None:
    """Go on from ``step`` into a spike, and back to where the checkpoint was."""
    kept = guard.state()
    assert alarms(guard, [9.0] * 4, step + 1) == [step + 4]
    guard.load(kept)


def test_rollbacks_are_bounded_though_the_checkpoint_does_not_know_of_them() -> None:
    guard = SpikeGuard(GuardConfig(rollbacks=2))
    alarms(guard, healthy(500, 6))
    kept = guard.state()
    _spike(guard, 500)
    guard.load(kept)
    _spike(guard, 500)
    guard.load(kept)
    with pytest.raises(TrainingError, match=r"step 504: .* after 2 rollbacks within 2000 steps"):
        _spike(guard, 500)


def test_rollbacks_far_apart_do_not_add_up() -> None:
    guard = SpikeGuard(GuardConfig(rollbacks=1, span=100))
    alarms(guard, healthy(500, 6))
    _spike(guard, 500)
    _spike(guard, 700)
    with pytest.raises(TrainingError):
        _spike(guard, 750)


def test_a_guard_that_is_off_says_nothing() -> None:
    assert not SpikeGuard(GuardConfig(enabled=False)).observe(record(1, math.nan))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"window": 16}, "patience <= history <= window, got 4, 32 and 16"),
        ({"threshold": 0.0}, "threshold: expected more than 0, got 0.0"),
        ({"patience": 0}, "patience: expected more than 0, got 0"),
        ({"rollbacks": -1}, "rollbacks: expected at least 0, got -1"),
    ],
)
def test_what_cannot_judge_is_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GuardConfig(**values)  # type: ignore[arg-type]
