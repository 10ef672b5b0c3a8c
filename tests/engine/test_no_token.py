"""Logits without a finite peak end a request with an error: they are no answer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.engine._prompt_logprobs import score
from monolane.errors import BackendError
from monolane.executor_api import NO_TOKEN, Draw, Guide
from monolane.reference import choose
from tests.random_models import write_random_model

RAW = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 64,
    "torch_dtype": "float32",
}
Change = Callable[[str, np.ndarray], np.ndarray]
IDS = [1, 2, 3]


def norm_of(value: float) -> Change:
    """All of the last norm's scales."""
    return lambda name, x: np.full_like(x, value) if name == "model.norm.weight" else x


def one_row(value: float) -> Change:
    """One number of one token's row of the head: that token's logit alone."""

    def change(name: str, x: np.ndarray) -> np.ndarray:
        if name == "lm_head.weight":
            x[35, 3] = value
        return x

    return change


def one_embedding(value: float) -> Change:
    """One token that is bad to read."""

    def change(name: str, x: np.ndarray) -> np.ndarray:
        if name == "model.embed_tokens.weight":
            x[2, 3] = value
        return x

    return change


def write_folder(folder: Path, change: Change = lambda name, x: x) -> Path:
    return write_random_model(folder, RAW, change=change)


def refused() -> Any:
    return pytest.raises(BackendError, match="logits: expected a finite number")


DRAWS = {
    "greedy": SamplingParams(max_tokens=4, temperature=0, ignore_eos=True),
    "drawn": SamplingParams(max_tokens=4, temperature=1, ignore_eos=True),
    "limited": SamplingParams(max_tokens=4, temperature=0.7, top_k=5, top_p=0.9, min_p=0.05),
    "biased": SamplingParams(max_tokens=4, temperature=0, logit_bias={7: 5.0}),
    "penalised": SamplingParams(max_tokens=4, temperature=1, frequency_penalty=0.5),
    "with logprobs": SamplingParams(max_tokens=4, temperature=0, logprobs=3),
    "without drafts": SamplingParams(max_tokens=4, temperature=0, speculation="off"),
}


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("draw", DRAWS)
def test_a_request_ends_with_an_error(tmp_path: Path, backend: str, draw: str) -> None:
    write_folder(tmp_path, norm_of(np.nan))
    with Engine.load(tmp_path, backend, dtype="float32", context=32) as engine:
        for _ in range(2):  # the engine goes on, and says it again
            with refused():
                engine.generate(IDS, DRAWS[draw])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(
    "change",
    [norm_of(np.inf), one_row(np.nan), one_row(np.inf), one_embedding(np.nan)],
    ids=["infinite norm", "a row of NaN", "an infinite row", "an embedding"],
)
def test_whatever_the_broken_weight(tmp_path: Path, backend: str, change: Change) -> None:
    write_folder(tmp_path, change)
    with Engine.load(tmp_path, backend, dtype="float32", context=32) as engine, refused():
        engine.generate(IDS, DRAWS["greedy"])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_others_go_on(tmp_path: Path, backend: str) -> None:
    """A token that is bad to read ends the request that reads it, and no other beside it."""
    write_folder(tmp_path, one_embedding(np.nan))
    with Engine.load(tmp_path, backend, dtype="float32", context=32, max_sequences=2) as engine:
        alone = engine.generate([4, 5, 6], DRAWS["greedy"]).token_ids
        assert 2 not in alone
        good = engine.stream([4, 5, 6], DRAWS["greedy"])
        first = next(good).token_ids
        with refused():
            engine.generate(IDS, DRAWS["greedy"])
        assert (*first, *good.result().token_ids) == alone


class Anything:
    """Allows every token but a few, which would hide what they are."""

    def step(self, token_id: int | None) -> Guide:
        return Guide(np.array([0xFFFFFFFF, 0xFFFFFFF0, 0xFFFFFFFF, 1], np.uint32))  # not 32..35


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("change", [norm_of(np.nan), one_row(np.nan)], ids=["all", "masked out"])
def test_a_guided_request_too(tmp_path: Path, backend: str, change: Change) -> None:
    """Also where the mask would leave the one bad logit out."""
    write_folder(tmp_path, change)
    with Engine.load(tmp_path, backend, dtype="float32", context=32) as engine, refused():
        engine.generate(IDS, DRAWS["drawn"], Anything())


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_scored_prompt_ends_with_an_error(tmp_path: Path, backend: str) -> None:
    write_folder(tmp_path, norm_of(np.nan))
    with Engine.load(tmp_path, backend, dtype="float32", context=32) as engine, refused():
        list(score(engine.backend, 0, IDS, 1))  # before a token is drawn, which fails as well


def test_a_draft_model_that_is_broken_changes_no_token(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
    good = write_folder(tmp_path / "good")
    bad = write_folder(tmp_path / "bad", norm_of(np.nan))
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    with Engine.load(good, "cpu", dtype="float32", context=32) as engine:
        expected = engine.generate(IDS, params).token_ids
    with Engine.load(good, "cpu", dtype="float32", context=32, draft=bad) as engine:
        assert engine.generate(IDS, params).token_ids == expected


def test_the_oracle() -> None:
    logits = np.array([1.0, 3.0, 2.0], np.float32)
    assert choose(logits, Draw(temperature=0), 0) == 1
    for place in range(3):
        for value in (np.nan, np.inf):
            broken = logits.copy()
            broken[place] = value
            for temperature in (0.0, 1.0):
                assert choose(broken, Draw(temperature=temperature), 0) == NO_TOKEN
    assert choose(np.full(3, -np.inf, np.float32), Draw(temperature=0), 0) == NO_TOKEN
    assert choose(np.array([-np.inf, 1, 0], np.float32), Draw(temperature=0), 0) == 1
