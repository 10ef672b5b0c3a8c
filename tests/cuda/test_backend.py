"""The engine on the CUDA backend, on an emulated GPU: requests that come and go, text, limits."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_gpu import EmulatedGpu

from monolane import Engine, SamplingParams
from monolane.cuda import CudaExecutor
from monolane.engine import _engine
from monolane.errors import BackendError, RequestError
from monolane.model import Weights

GREEDY = SamplingParams(max_tokens=20, ignore_eos=True)
SAMPLED = SamplingParams(
    max_tokens=12, temperature=1.2, top_k=50, top_p=0.9, min_p=0.01, seed=11, ignore_eos=True
)
Load = Callable[..., Engine]


@pytest.fixture(scope="module")
def load(kernel_folder: Path, tiny_model: Path) -> Load:
    """Engine.load, but for the GPU."""

    def make(weights: Weights, dtype: str, **more: Any) -> CudaExecutor:
        return CudaExecutor(weights, dtype, EmulatedGpu(kernel_folder), **more)

    def load(**wish: object) -> Engine:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_engine, "find_backend", lambda *_: make)
            return Engine.load(tiny_model, "cuda", **wish)  # type: ignore[arg-type]

    return load


@pytest.fixture(scope="module")
def engine(load: Load) -> Iterator[Engine]:
    with load(max_sequences=3) as loaded:
        yield loaded


def test_text_streams(engine: Engine) -> None:
    whole = engine.generate("def f(x):", GREEDY)
    pieces = list(engine.stream("def f(x):", GREEDY))
    assert sum((piece.token_ids for piece in pieces), ()) == whole.token_ids
    assert "".join(piece.text for piece in pieces) == whole.text
    assert len(whole.token_ids) == 20
    assert engine.generate("def f(x):", SAMPLED) != engine.generate("def f(x):", GREEDY)


def test_requests_from_several_threads_do_not_touch_each_other(engine: Engine) -> None:
    prompts = [[1, 5, 9], [1, 7] * 8, [1, 300, 21, 4]] * 2
    wishes = [GREEDY, SAMPLED, SamplingParams(max_tokens=7, ignore_eos=True, logprobs=2)] * 2
    alone = [engine.generate(p, w) for p, w in zip(prompts, wishes, strict=True)]
    found: dict[int, tuple[int, ...]] = {}

    def ask(i: int) -> None:
        found[i] = engine.generate(prompts[i], wishes[i]).token_ids

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(len(prompts))] == [x.token_ids for x in alone]


def test_a_stream_that_is_closed_lets_go(engine: Engine) -> None:
    for _ in range(2 * engine.backend.slots):
        with engine.stream([1, 2, 3], SamplingParams(max_tokens=None, ignore_eos=True)) as stream:
            next(iter(stream))
    assert len(engine.generate([1, 2, 3], GREEDY).token_ids) == 20


def test_stop_tokens_logprobs_and_the_end_of_the_context(engine: Engine) -> None:
    answer = engine.generate([1, 5, 9], GREEDY).token_ids
    stopped = engine.generate(
        [1, 5, 9], SamplingParams(max_tokens=20, ignore_eos=True, stop_ids=(answer[3],))
    )
    end = answer.index(answer[3])
    assert stopped.token_ids[:end] == answer[:end]
    assert stopped.finish_reason == "stop"
    full = engine.generate([1] * 90, SamplingParams(max_tokens=None, ignore_eos=True))
    assert len(full.token_ids) == 7  # 96 positions, and the last token drawn is never fed
    with pytest.raises(RequestError, match="expected at most 96 tokens"):
        engine.generate([1] * 97)
    pieces = list(engine.stream([1, 5], SamplingParams(max_tokens=3, ignore_eos=True, logprobs=1)))
    described = [x for piece in pieces for x in piece.logprobs or ()]
    assert [x.token_id for x in described] == [x.top[0][0] for x in described]
    assert all(x.logprob == x.top[0][1] <= 0 for x in described)


def test_logits_agree_with_the_oracles(engine: Engine, tiny_model: Path) -> None:
    ids = [1, *range(3, 60)]
    with Engine.load(tiny_model, "reference") as reference:
        expected = reference.logits(ids)
    ours = engine.logits(ids)
    # bfloat16 rounds each activation by 2^-9 at most, in four layers of two modules.
    assert np.abs(ours - expected).max() < 8 * 2**-9 * np.abs(expected).max()


def test_a_failure_ends_the_requests_and_not_the_engine(load: Load) -> None:
    with load(max_sequences=2) as engine:
        before = engine.generate([1, 5, 9], GREEDY)
        executor = engine.backend.executor
        assert isinstance(executor, CudaExecutor)
        gpu = executor._resident.device
        assert isinstance(gpu, EmulatedGpu)
        executor.WATCHDOG_SECONDS = 0.2  # type: ignore[misc]
        gpu.sabotage = lambda _, shape: type(shape)(
            shape.blocks - 1, shape.threads, shape.shared_bytes, shape.cooperative
        )
        with pytest.raises(BackendError, match="waited in vain"):
            engine.generate([1, 5, 9], GREEDY)
        gpu.sabotage = None
        del executor.WATCHDOG_SECONDS
        assert engine.generate([1, 5, 9], GREEDY).token_ids == before.token_ids


def test_what_does_not_fit_is_told_and_given_back(
    kernel_folder: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    monkeypatch.setattr(EmulatedGpu, "close", lambda self: closed.append(self))
    with pytest.raises(BackendError, match="cuda: dtype: expected one of auto, bfloat16"):
        load(dtype="float32")
    assert len(closed) == 1
