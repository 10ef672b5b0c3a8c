"""The executor on several emulated GPUs, each a thread with memory of its own: the bits of one."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from emulated_gpu import EmulatedGpu
from models import random_weights
from test_executor import PROMPT, MakeGpu, greedy, run, tokens

from monolane.cuda._executor import CudaExecutor
from monolane.cuda._peers import connect
from monolane.errors import BackendError
from monolane.executor_api import Advance, Draw, Guide, TokenEvent


def make(gpus: Sequence[EmulatedGpu]) -> CudaExecutor:
    return CudaExecutor(random_weights(), "auto", tuple(gpus), context=200, slots=4)


def pair(make_gpu: MakeGpu, **wish: object) -> list[EmulatedGpu]:
    """Half as many SMs each as the one GPU of the other tests: the same blocks in all."""
    return [make_gpu(sms=2, number=i, seed=100 * i, **wish) for i in range(2)]


LIMITED = Draw(temperature=1.1, top_k=30, top_p=0.9, seed=5)
PENALISED = Draw(temperature=0.8, frequency_penalty=0.7, seed=6)
ASKS = (
    greedy(budget=5),
    Advance(slot=1, token_ids=PROMPT[:4], budget=5, draw=LIMITED),
    Advance(slot=2, token_ids=PROMPT[:3], budget=5, draw=PENALISED),
)


def results(executor: CudaExecutor) -> tuple[list[list[int]], bytes]:
    drawn: list[TokenEvent] = run(executor, *ASKS)
    executor.truncate(0, 0)
    return [tokens(drawn, slot) for slot in range(3)], executor.logits(0, PROMPT).tobytes()


def test_two_gpus_give_what_one_does(make_gpu: MakeGpu) -> None:
    alone = make([make_gpu(sms=4)])
    gpus = pair(make_gpu)
    executor = make(gpus)
    assert results(executor) == results(alone)
    # A prompt runs wide and its answer narrow, on both.
    for gpu in gpus:
        assert all(shape.blocks == 2 for name, shape in gpu.launches if name == "monokernel")
        assert len({shape for name, shape in gpu.launches if name == "monokernel"}) == 2
    weights = [executor._resident._memories[i].weight_bytes for i in range(2)]
    assert weights == [alone._resident._memories[0].weight_bytes // 2] * 2
    caches = [executor._resident._memories[i].cache_bytes for i in range(2)]
    assert caches == [alone._resident._memories[0].cache_bytes // 2] * 2
    alone.close()
    executor.close()
    assert all(gpu.closed for gpu in gpus)


def test_a_late_gpu_is_named_and_the_engine_goes_on(
    make_gpu: MakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = pair(make_gpu)
    executor = make(gpus)
    whole = tokens(run(executor, greedy(budget=4)))
    monkeypatch.setattr(executor, "WATCHDOG_SECONDS", 0.2)
    gpus[1].sabotage = lambda _, shape: replace(shape, blocks=0)  # as if it had died
    with pytest.raises(BackendError, match=r"cuda: device 1 of 2 .* is late: on device 0 block"):
        run(executor, greedy(2))
    assert [executor.length(slot) for slot in range(3)] == [0, 0, 0]
    monkeypatch.undo()
    gpus[1].sabotage = None
    assert executor.read(0.0)
    assert tokens(run(executor, greedy(budget=4))) == whole
    executor.close()


def test_guides_reach_all_gpus(make_gpu: MakeGpu) -> None:
    executor = make(pair(make_gpu))
    mask = np.zeros(-(-executor.plan.config.vocab_size // 32), np.uint32)
    mask[0] = 1 << 7 | 1 << 9
    executor.start([Advance(slot=0, token_ids=PROMPT, budget=2, guided=True)])
    executor.guide(0, Guide(mask))
    drawn: list[TokenEvent] = []
    while not executor.read(0.1):
        for event in executor.take():
            drawn.append(event)
            executor.guide(0, Guide(mask))
    drawn += executor.take()
    assert len(drawn) == 2
    assert set(tokens(drawn)) <= {7, 9}
    executor.close()


def test_gpus_that_do_not_go_together(make_gpu: MakeGpu) -> None:
    apart = [make_gpu(number=0), make_gpu(number=1, unreachable=(0,))]
    with pytest.raises(BackendError, match=r"GPU 1 \(Emulated\) cannot reach GPU 0"):
        connect(apart)
    unlike = [make_gpu(sms=4), make_gpu(sms=3, number=1)]
    with pytest.raises(BackendError, match=r"one kind, got Emulated \(4 SMs\) as GPU 0"):
        make(unlike)
    assert all(gpu.closed for gpu in unlike)
    with pytest.raises(BackendError, match="devices: expected one of 1, 2, which divide"):
        make([make_gpu(number=i) for i in range(3)])
