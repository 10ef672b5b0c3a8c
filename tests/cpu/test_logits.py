"""Logits and hidden states of given tokens: refused amid an epoch, no result if interrupted."""

import threading

import numpy as np
import pytest
from random_weights import weights_of

from monolane.cpu import CpuExecutor
from monolane.errors import BackendError
from monolane.executor_api import Advance, Draw
from monolane.model import NOW, Head, LayerConfig, ModelConfig

CONFIG = ModelConfig(
    family="laneformer",
    hidden_size=64,
    intermediate_size=128,
    num_heads=8,
    num_kv_heads=4,
    head_dim=8,
    vocab_size=72,
    max_positions=600,
    num_lanes=4,
    layers=(LayerConfig(NOW, NOW, 24), LayerConfig(NOW, NOW)),
    head=Head.VOCAB_PARALLEL,
)


def test_refused_logits_leave_the_epoch_alone() -> None:
    executor = CpuExecutor(weights_of(CONFIG), "float32", context=600, slots=2, workers=1)
    draw = Draw(temperature=1.1, seed=5)
    asked = Advance(slot=0, token_ids=(0, 1, 2, 3, 4), budget=400, draw=draw)
    executor.start([asked])
    while not executor.read(0.1):
        pass
    alone = executor.take()
    executor.truncate(0, 0)
    executor.start([asked])
    refused = 0
    while not executor.read(0):
        for compute in (executor.logits, executor.hidden):
            with pytest.raises(RuntimeError, match="an epoch is running"):
                compute(1, [5])
            refused += 1
    assert [event.token_id for event in executor.take()] == [event.token_id for event in alone]
    assert refused > 20


def test_interrupted_logits_are_no_result() -> None:
    executor = CpuExecutor(weights_of(CONFIG), "float32", context=600, slots=1, workers=1)
    ids = np.random.default_rng(0).integers(72, size=590).tolist()
    whole = executor.logits(0, ids)
    refused = False
    while not refused:
        executor.truncate(0, 0)
        over = threading.Event()

        def interrupt(over: threading.Event = over) -> None:
            while not over.wait(0.001):
                executor.interrupt()

        other = threading.Thread(target=interrupt)
        other.start()
        try:
            assert np.array_equal(executor.logits(0, ids), whole)
        except BackendError as error:
            assert "expected no `interrupt` while they are computed" in str(error)
            refused = True
        over.set()
        other.join()
