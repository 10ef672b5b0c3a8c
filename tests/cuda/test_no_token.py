"""Logits that are no finite numbers end a request on an emulated GPU, as on the other backends."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_gpu import EmulatedGpu

from monolane import Engine, SamplingParams
from monolane.cuda import CudaExecutor
from monolane.engine import _engine
from monolane.engine._prompt_logprobs import score
from monolane.errors import BackendError
from monolane.executor_api import Guide
from monolane.model import Checkpoint, Weights, write_checkpoint

Change = Callable[[str, np.ndarray], np.ndarray]
Load = Callable[..., Engine]
IDS, BAD = [5, 6, 7], 6


def norm_of(value: float) -> Change:
    """All of the last norm's scales: every logit."""
    return lambda name, x: np.full_like(x, value) if name == "model.norm.scale" else x


def one_row(value: float) -> Change:
    """One number of one token's row of the head: that token's logit alone."""

    def change(name: str, x: np.ndarray) -> np.ndarray:
        if name == "lm_head.weight":
            x[0, 35, 3] = value
        return x

    return change


def one_embedding(name: str, x: np.ndarray) -> np.ndarray:
    """One token that is bad to read."""
    if name == "model.tok_embeddings.weight":
        x[BAD, 3] = np.nan
    return x


@pytest.fixture
def load(kernel_folder: Path, tiny_model: Path, tmp_path: Path) -> Load:
    """Engine.load of the tiny model with its weights changed, but for the GPU."""

    def make(weights: Weights, dtype: str, **more: Any) -> CudaExecutor:
        return CudaExecutor(weights, dtype, EmulatedGpu(kernel_folder), **more)

    def load(change: Change, **wish: object) -> Engine:
        config = json.loads((tiny_model / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config))
        tensors = [(n, change(n, np.array(x))) for n, x in Checkpoint.open(tiny_model).items()]
        write_checkpoint(tmp_path, tensors)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_engine, "find_backend", lambda *_: make)
            return Engine.load(tmp_path, "cuda", **wish)  # type: ignore[arg-type]

    return load


def refused() -> Any:
    return pytest.raises(BackendError, match="logits: expected a finite number")


def wish(**more: Any) -> SamplingParams:
    return SamplingParams(
        **({"max_tokens": 4, "temperature": 1.0, "seed": 3, "ignore_eos": True} | more)
    )


DRAWS = {
    "greedy": wish(temperature=0),
    "drawn": wish(),
    "limited": wish(temperature=0.7, top_k=5, top_p=0.9, min_p=0.05),
    "biased": wish(temperature=0, logit_bias={7: 5.0, 35: -100.0}),
    "penalised": wish(frequency_penalty=0.5),
    "with logprobs": wish(temperature=0, logprobs=3),
}


@pytest.mark.parametrize(
    "change",
    [norm_of(np.nan), norm_of(np.inf), one_row(np.nan), one_row(np.inf)],
    ids=["NaN", "infinite", "a row of NaN", "an infinite row"],
)
def test_a_request_ends_with_an_error(load: Load, change: Change) -> None:
    with load(change, max_sequences=3) as engine:
        for draw in (*DRAWS.values(), DRAWS["greedy"]):  # the engine goes on, and says it again
            with refused():
                engine.generate(IDS, draw)


class Anything:
    """Allows every token but a few, which would hide what they are."""

    def step(self, token_id: int | None) -> Guide:
        mask = np.full(10, 0xFFFFFFFF, np.uint32)
        mask[1] = 0xFFFFFFF0  # not 32..35
        return Guide(mask)


@pytest.mark.parametrize("draw", ["greedy", "limited"])
def test_a_guided_request_too(load: Load, draw: str) -> None:
    """Also where the mask would leave the one bad logit out."""
    with load(one_row(np.nan), max_sequences=3) as engine, refused():
        engine.generate(IDS, DRAWS[draw], Anything())


def test_a_scored_prompt_ends_with_an_error(load: Load) -> None:
    with load(norm_of(np.nan), max_sequences=3) as engine, refused():
        list(score(engine.backend, 0, IDS, 1))


@pytest.mark.parametrize("draw", ["greedy", "limited", "with logprobs"])
def test_others_go_on(load: Load, draw: str) -> None:
    """A token that is bad to read ends the request that reads it, and no other beside it."""
    params = DRAWS[draw]
    with load(one_embedding, max_sequences=3) as engine:
        alone = engine.generate([4, 5, 9], params).token_ids
        assert BAD not in alone
        good = engine.stream([4, 5, 9], params)
        first = next(good).token_ids
        with refused():
            engine.generate(IDS, params)
        assert (*first, *good.result().token_ids) == alone
