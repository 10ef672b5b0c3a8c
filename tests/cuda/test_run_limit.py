"""A GPU with a display, whose driver ends kernels that run for long: launches end before."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from emulated_gpu import EmulatedGpu
from models import random_weights

from monolane.cuda import CudaExecutor
from monolane.cuda._device import Launch
from monolane.executor_api import Advance, Draw

PROMPT = (1, 17, 33, 5, 60, 2, 91, 44, 8, 71, 30)
DRAW = Draw(temperature=0.8, seed=3, frequency_penalty=0.5)
MakeGpu = Callable[..., EmulatedGpu]


@pytest.fixture
def gpu(make_gpu: MakeGpu) -> EmulatedGpu:
    return make_gpu(sms=4)


def new_executor(gpu: EmulatedGpu) -> CudaExecutor:
    made = CudaExecutor(random_weights(), "auto", gpu, context=200, slots=2)
    gpu.launches.clear()
    return made


def run(executor: CudaExecutor) -> list[int]:
    advances = [
        Advance(slot=0, token_ids=PROMPT, budget=9),
        Advance(slot=1, token_ids=PROMPT[:3], budget=5, draw=DRAW, logprobs=2),
    ]
    executor.start(advances)
    while not executor.read(1.0):
        pass
    found = executor.take()
    assert all(np.isfinite(x.logprob.logprob) for x in found if x.logprob is not None)
    return [x.token_id for slot in (0, 1) for x in found if x.slot == slot]


def cut_short_at_once(gpu: EmulatedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel begins before its launch has been asked for the end: each makes one pass."""
    held: list[threading.Event] = []

    def hold(entry: str, shape: Launch) -> Launch:
        asked = threading.Event()
        held.append(asked)

        def wait() -> None:
            asked.wait(600)  # at most: where nobody asks

        gpu._submit(wait)
        return shape

    class Timer(threading.Thread):
        def __init__(self, seconds: float, call: Callable[..., None], given: Sequence[Any]) -> None:
            super().__init__()
            assert 0 < seconds < 2, "the shortest limit that a driver is known to have"
            self._call, self._given, self._held = call, given, held.copy()
            held.clear()

        def run(self) -> None:
            self._call(*self._given)
            for event in self._held:
                event.set()

    monkeypatch.setattr(threading, "Timer", Timer)
    gpu.sabotage = hold


def test_launches_that_are_cut_short_draw_the_same(
    make_gpu: MakeGpu, gpu: EmulatedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlimited = make_gpu(sms=4)
    executor = new_executor(unlimited)
    expected, launches = run(executor), len(unlimited.launches)
    executor.close()
    gpu.info = replace(gpu.info, run_limited=True)
    executor = new_executor(gpu)
    cut_short_at_once(gpu, monkeypatch)
    assert run(executor) == expected
    assert len(gpu.launches) > max(launches, 9), "a pass each"
    executor.close()


def test_all_logits_come_of_one_launch(gpu: EmulatedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.info = replace(gpu.info, run_limited=True)
    executor = new_executor(gpu)
    monkeypatch.setattr(threading, "Timer", None)
    logits = executor.logits(0, PROMPT)
    executor.close()
    assert len(gpu.launches) == 2
    assert np.isfinite(logits).all()
    assert len(np.unique(logits, axis=0)) == len(PROMPT)
