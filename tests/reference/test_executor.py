"""The oracle as an executor: epochs that end at any time, and sequences that are copied."""

from pathlib import Path

import numpy as np
import pytest

from monolane.errors import BackendError, RequestError
from monolane.executor_api import Advance, Draw, Guide
from monolane.model import Checkpoint, Weights, read_config
from monolane.reference import ReferenceExecutor


@pytest.fixture
def executor(tiny_model: Path) -> ReferenceExecutor:
    weights = Weights.load(read_config(tiny_model), Checkpoint.open(tiny_model))
    return ReferenceExecutor(weights, context=100, slots=2)


def run(executor: ReferenceExecutor, *advances: Advance) -> dict[int, list[int]]:
    drawn: dict[int, list[int]] = {advance.slot: [] for advance in advances}
    executor.start(advances)
    while not executor.read(1.0):
        pass
    for event in executor.take():
        drawn[event.slot].append(event.token_id)
    return drawn


def ask(slot: int, budget: int = 12) -> Advance:
    return Advance(slot=slot, token_ids=(5, 6, 7), budget=budget, draw=Draw(temperature=1.0))


def test_a_copied_sequence_goes_on_in_the_same_bits(executor: ReferenceExecutor) -> None:
    executor.logits(0, [1, 2, 3])
    executor.copy(0, 1)
    executor.logits(0, [4])
    assert (executor.length(0), executor.length(1)) == (4, 3)
    copied = executor.logits(1, [4])
    executor.truncate(0, 3)
    np.testing.assert_array_equal(copied, executor.logits(0, [4]))


def test_what_was_saved_goes_on_in_the_same_bits(executor: ReferenceExecutor) -> None:
    executor.logits(0, [1, 2, 3, 4])
    whole, last = executor.save(0, 0, 3), executor.save(0, 3, 4)
    wanted = executor.logits(0, [5])
    executor.restore(1, whole, 2)
    assert executor.length(1) == 2
    executor.truncate(1, 0)
    executor.restore(1, whole, 3)
    executor.restore(1, last, 1)
    np.testing.assert_array_equal(executor.logits(1, [5]), wanted)


def test_an_interrupted_epoch_is_taken_up_where_it_stood(executor: ReferenceExecutor) -> None:
    whole = run(executor, ask(0), ask(1))
    assert whole[0] == whole[1]
    executor.truncate(0, 0)
    executor.start([ask(0)])
    executor.read(1.0)
    executor.read(1.0)
    executor.interrupt()
    assert executor.read(1.0)
    begun = [event.token_id for event in executor.take()]
    assert 0 < len(begun) < 12
    rest = Advance(
        slot=0, token_ids=(begun[-1],), budget=12 - len(begun), draw=Draw(temperature=1.0)
    )
    assert begun + run(executor, rest)[0] == whole[0]


def test_a_failed_epoch_leaves_it_usable(executor: ReferenceExecutor) -> None:
    executor.start([Advance(slot=0, token_ids=(10**6,), budget=1)])
    with pytest.raises(RequestError, match="token ids: expected 0 to"):
        executor.read(1.0)
    assert executor.read(1.0)
    assert len(run(executor, ask(0))[0]) == 12


def test_what_it_has_not_is_refused_by_name(executor: ReferenceExecutor, tiny_model: Path) -> None:
    executor.start([ask(0)])
    with pytest.raises(RequestError, match="guide: expected a guided slot of the epoch, got 0"):
        executor.guide(0, Guide(None, (1,)))
    with pytest.raises(BackendError, match="trace: the reference backend keeps none; use 'cpu'"):
        executor.set_trace(True)
    weights = Weights.load(read_config(tiny_model), Checkpoint.open(tiny_model))
    with pytest.raises(
        BackendError, match=r"workers \(--threads\): the reference backend has one, got 2"
    ):
        ReferenceExecutor(weights, context=9, slots=1, workers=2)
