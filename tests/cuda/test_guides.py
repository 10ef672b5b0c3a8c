"""Constraints on the CUDA backend, on an emulated GPU: the engine's own tests of them, and how
launches and guides find each other."""

import importlib.util
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_gpu import EmulatedGpu
from models import random_weights

from monolane import Engine
from monolane.cuda import _launch
from monolane.cuda._executor import CudaExecutor
from monolane.engine import _engine
from monolane.errors import RequestError
from monolane.executor_api import Advance, Guide, TokenEvent
from monolane.model import Weights


def _engine_tests() -> Any:
    path = Path(__file__).parents[1] / "engine" / "test_constraint.py"
    spec = importlib.util.spec_from_file_location("constraints_of_the_engine", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- the engine's tests --------------------------------------------------------------------------
_CONSTRAINTS = _engine_tests()
_BUSY = "test_guided_and_free_answers_do_not_touch_each_other"  # minutes of emulation
_DRAFTED = "test_drafts_do_not_change_what_is_guided"  # this backend has no drafts
globals().update(
    {
        name: x
        for name, x in vars(_CONSTRAINTS).items()
        if name.startswith("test_") and name not in (_BUSY, _DRAFTED)
    }
)
test_guided_and_free_answers = pytest.mark.exhaustive(getattr(_CONSTRAINTS, _BUSY))


@pytest.fixture(scope="module")
def backend(kernel_folder: Path) -> Iterator[str]:
    """Whoever asks for a backend gets the CUDA one, on an emulated GPU."""

    def make(weights: Weights, dtype: str, **more: Any) -> CudaExecutor:
        return CudaExecutor(weights, dtype, EmulatedGpu(kernel_folder), **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_engine, "find_backend", lambda *_: make)
        yield "cuda"


@pytest.fixture(scope="module")
def engine(tiny_model: Path, backend: str) -> Iterator[Engine]:
    with Engine.load(tiny_model, backend) as loaded:
        yield loaded


# ---- launches and guides -------------------------------------------------------------------------
PROMPT = (1, 17, 33, 5, 60, 2, 91, 44, 8, 71, 30)
ALL = np.full(3, 0xFFFFFFFF, np.uint32)  # of 96 tokens


@pytest.fixture
def gpu(kernel_folder: Path) -> Iterator[EmulatedGpu]:
    made = EmulatedGpu(kernel_folder)
    yield made
    made.close()


@pytest.fixture
def executor(gpu: EmulatedGpu) -> CudaExecutor:
    made = CudaExecutor(random_weights(), "auto", gpu, context=200, slots=3)
    gpu.launches.clear()
    return made


def greedy(slot: int = 0, budget: int = 8, guided: bool = False) -> Advance:
    return Advance(slot=slot, token_ids=PROMPT, budget=budget, guided=guided)


def run(executor: CudaExecutor, guides: Sequence[Guide], *advances: Advance) -> list[TokenEvent]:
    """An epoch whose slot 0 gets these guides, each as soon as it may come."""
    executor.start(advances)
    waiting, drawn, due = list(guides), [], 0
    while True:
        if waiting and len([x for x in drawn if x.slot == 0]) >= due:
            guide = waiting.pop(0)
            due += len(guide.forced) + (guide.mask is not None)
            executor.guide(0, guide)
        over = executor.read(1.0)
        drawn += executor.take()
        if over:
            return drawn


def tokens(drawn: Sequence[TokenEvent], slot: int = 0) -> list[int]:
    return [x.token_id for x in drawn if x.slot == slot]


def test_a_mask_that_allows_all_costs_no_launch(executor: CudaExecutor, gpu: EmulatedGpu) -> None:
    """Who guides in time is waited for within the launch, and changes nothing."""
    whole = tokens(run(executor, [], greedy()))
    executor.truncate(0, 0)
    gpu.launches.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_launch, "_ALONE_SECONDS", 30.0)  # an emulated pass is no measure of time
        assert tokens(run(executor, [Guide(ALL)] * 8, greedy(guided=True))) == whole
    assert len(gpu.launches) == 2, "the wide kernel and the narrow one, once"
    assert executor.length(0) == len(PROMPT) + 7


def test_a_late_guide_holds_up_nobody_else(executor: CudaExecutor) -> None:
    alone = tokens(run(executor, [], greedy(1, budget=30)), 1)
    for slot in (0, 1):
        executor.truncate(slot, 0)
    executor.start([greedy(0, budget=2, guided=True), greedy(1, budget=30)])
    drawn: list[TokenEvent] = []
    while len(tokens(drawn, 1)) < 30:  # slot 0 has no guide all the while
        assert not executor.read(1.0)
        drawn += executor.take()
    assert tokens(drawn, 1) == alone
    assert tokens(drawn, 0) == []
    assert not executor.read(0.0), "slot 0 still waits"
    began = time.monotonic()
    assert not executor.read(0.2)
    assert time.monotonic() - began > 0.15, "and nobody spins"
    assert executor.length(0) == len(PROMPT) - 1
    for _ in range(2):
        executor.guide(0, Guide(ALL))
        while not executor.take():
            executor.read(1.0)
    assert executor.read(1.0)


def test_an_epoch_that_waits_for_a_guide_can_be_ended(executor: CudaExecutor) -> None:
    woken: list[bool] = []

    class Called(threading.Event):
        """Whoever waits for it is interrupted meanwhile."""

        def wait(self, timeout: float | None = None) -> bool:
            ender = threading.Thread(target=executor.interrupt)
            ender.start()
            woken.append(super().wait(timeout))
            ender.join()
            return woken[-1]

    executor.start([greedy(0, guided=True)])
    assert executor._epoch is not None
    executor._epoch._called = Called()
    assert executor.read(600.0)
    assert woken == [True], "the interruption ends the wait, not the 600 seconds"
    assert executor.take() == []


def test_forced_tokens_go_in_like_a_prompt(executor: CudaExecutor, gpu: EmulatedGpu) -> None:
    forced = (7, 8, 9, 10, 11, 12)
    masks = [Guide(ALL), Guide(ALL, forced), Guide(ALL)]
    drawn = run(executor, masks, greedy(budget=9, guided=True))
    got = tokens(drawn)
    assert got[1:7] == list(forced)
    assert len(got) == 9
    executor.truncate(0, 0)
    told = executor.logits(0, [*PROMPT, *got])
    # The drawn ones are the most probable behind what was forced.
    assert [int(told[len(PROMPT) + i - 1].argmax()) for i in (0, 7, 8)] == [got[0], got[7], got[8]]


def test_forced_tokens_may_be_the_end(executor: CudaExecutor) -> None:
    drawn = run(executor, [Guide(ALL), Guide(None, (5, 6))], greedy(budget=20, guided=True))
    assert tokens(drawn)[1:] == [5, 6]
    executor.truncate(0, 0)
    stopping = replace(greedy(budget=20, guided=True), stop_ids=frozenset((6,)))
    assert tokens(run(executor, [Guide(ALL, (5, 6, 7))], stopping)) == [5, 6]


def test_stamps_of_guides_never_wrap(executor: CudaExecutor) -> None:
    executor._resident.next_guide = (1 << 32) - 20
    first = tokens(run(executor, [Guide(ALL)] * 8, greedy(guided=True)))
    assert executor._resident.next_guide > 1 << 31
    executor.truncate(0, 0)
    again = tokens(run(executor, [Guide(ALL)] * 8, greedy(budget=8, guided=True)))
    executor.truncate(0, 0)
    last = tokens(run(executor, [Guide(ALL)] * 8, greedy(guided=True)))
    assert first == again == last
    assert executor._resident.next_guide < 1000


def test_a_slot_that_is_not_guided_takes_no_guide(executor: CudaExecutor) -> None:
    executor.start([greedy(1)])
    with pytest.raises(RequestError, match="expected a guided slot of the epoch, got 1"):
        executor.guide(1, Guide(ALL))
    while not executor.read(1.0):
        pass
