"""Plans compute what the oracle computes, whatever the schedule, and not without their waits."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from monolane.model import ModelConfig, SafetensorsFile, Weights
from monolane.plan import (
    Choice,
    DeviceDescription,
    Plan,
    PlanError,
    Scope,
    Wait,
    build,
    cpu,
    interpret,
)
from monolane.reference import ReferenceModel

DeviceOf = Callable[..., DeviceDescription]
WeightsOf = Callable[[str], Weights]
# Both sides compute in float32, in other orders: some tens of roundings of logits of order 10.
TOLERANCE = 2e-5


def oracle(weights: Weights, ids: list[int]) -> np.ndarray:
    model = ReferenceModel(weights)
    return model.forward(ids, model.new_cache())


@pytest.mark.parametrize("workers", [1, 3, 8, 20])
def test_logits_and_drawn_tokens_are_the_oracle_s(
    name: str, weights: Weights, device_of: DeviceOf, workers: int
) -> None:
    choice = list(Choice)[workers % 2]
    plan = build(weights.config, device_of(workers, choice), "float32", max_width=11)
    prompt = np.random.default_rng(0).integers(0, weights.config.vocab_size, 20).tolist()
    result = interpret(plan, weights, [prompt[:11], prompt[11:]], draws=5, seed=workers)
    fed = [*prompt, *result.token_ids[:-1]]
    expected = oracle(weights, fed)
    assert np.abs(result.logits - expected).max() < TOLERANCE * max(1, np.abs(expected).max())
    assert list(result.token_ids) == expected[19:].argmax(axis=-1).tolist()


def test_the_goldens_themselves(golden: Path, device_of: DeviceOf, weights_of: WeightsOf) -> None:
    weights = weights_of(golden.name)
    expected = SafetensorsFile(golden / "expected.safetensors")
    plan = build(weights.config, device_of(8), "float32")
    for ids, logits in zip(expected["input_ids"], expected["logits"], strict=True):
        ours = interpret(plan, weights, [ids[:31].tolist(), ids[31:].tolist()]).logits
        assert np.abs(ours - logits).max() < 1e-4
    greedy = expected["greedy_ids"][0].tolist()
    assert list(interpret(plan, weights, [greedy[:8]], draws=40).token_ids) == greedy[8:]


@pytest.mark.parametrize("workers", [3, 8])
def test_schedules_change_nothing_not_a_bit(
    name: str, weights: Weights, device_of: DeviceOf, workers: int
) -> None:
    plan = build(weights.config, device_of(workers), "float32")
    runs = [interpret(plan, weights, [[1, 5, 9]], draws=3, seed=seed) for seed in range(4)]
    runs += [interpret(plan, weights, [[1, 5, 9]], draws=3, laggard=worker) for worker in (0, 1)]
    for run in runs[1:]:
        assert run.token_ids == runs[0].token_ids
        assert np.array_equal(run.logits, runs[0].logits)


def test_short_rings_are_sound_too(weights_of: WeightsOf, device_of: DeviceOf) -> None:
    for name in ("released_shape", "early_comm"):
        weights = weights_of(name)
        plan = build(weights.config, device_of(4), "float32", ring_slots=3)
        ids = [3, 1, 4, 1, 5]
        for laggard in range(4):
            ours = interpret(plan, weights, [ids], laggard=laggard).logits
            assert np.abs(ours - oracle(weights, ids)).max() < 1e-4


@pytest.mark.parametrize(
    ("model", "workers", "choice", "slots"),
    [
        ("released_shape", 2, Choice.LEADER, None),
        ("released_shape", 8, Choice.EVERYONE, None),
        ("released_shape", 4, Choice.EVERYONE, 3),
        ("early_comm", 3, Choice.LEADER, None),
        ("no_comm", 8, Choice.EVERYONE, None),
        ("replicate_head", 8, Choice.LEADER, None),
        ("mixed", 4, Choice.EVERYONE, 5),
        ("dense", 3, Choice.LEADER, None),
        ("sum_head", 6, Choice.EVERYONE, None),
        ("late_norms", 3, Choice.LEADER, None),
        ("both_norms", 8, Choice.EVERYONE, None),
        ("altup", 3, Choice.LEADER, None),
    ],
)
def test_a_removed_wait_shows(
    model: str,
    workers: int,
    choice: Choice,
    slots: int | None,
    weights_of: WeightsOf,
    device_of: DeviceOf,
) -> None:
    weights = weights_of(model)
    plan = build(weights.config, device_of(workers, choice), "float32", ring_slots=slots)
    healthy = interpret(plan, weights, [[1, 5, 9], [2]], draws=3).logits
    for phase in plan.phases:
        for wait in phase.waits:
            rest = tuple(other for other in phase.waits if other is not wait)
            phases = list(plan.phases)
            phases[phase.index] = replace(phase, waits=rest)
            weaker = replace(plan, phases=tuple(phases))
            assert any(_differs(weaker, weights, healthy, laggard) for laggard in range(workers)), (
                phase.name,
                wait,
            )


def _differs(plan: Plan, weights: Weights, healthy: np.ndarray, laggard: int) -> bool:
    try:
        logits = interpret(plan, weights, [[1, 5, 9], [2]], draws=3, laggard=laggard).logits
    except PlanError as error:
        assert "before it is written" in str(error)
        return True
    return not np.array_equal(logits, healthy)


def test_a_deadlock_is_told(configs: dict[str, ModelConfig], weights_of: WeightsOf) -> None:
    plan = build(configs["released_shape"], cpu(2), "float32")
    phases = list(plan.phases)
    phases[3] = replace(phases[3], waits=(Wait(Scope.ALL, 5),))
    with pytest.raises(PlanError, match="all workers wait: 0 before OUT 0, 1 before OUT 0"):
        interpret(replace(plan, phases=tuple(phases)), weights_of("released_shape"), [[1]])


def test_the_error_says_who_read_what(
    configs: dict[str, ModelConfig], weights_of: WeightsOf, device_of: DeviceOf
) -> None:
    plan = build(configs["released_shape"], device_of(8), "float32")
    phases = list(plan.phases)
    phases[5] = replace(phases[5], waits=())
    with pytest.raises(PlanError, match=r"worker \d in DOWN 0: reads HIDDEN before it is written"):
        interpret(
            replace(plan, phases=tuple(phases)), weights_of("released_shape"), [[1]], laggard=0
        )
