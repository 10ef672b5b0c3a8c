"""Heads as a caller sees them: the same answers, how they are named, and what is refused."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.engine import ModelFiles
from monolane.errors import CheckpointError, ConfigError, RequestError
from monolane.model import Heads, Role, write_safetensors
from monolane.sources import find_model

PROMPT = "class Reader:\n    def __init__(self, path):\n"


def demo_heads() -> Heads:
    """Untrained heads of the demo model: they say the last token's own row, and are often wrong."""
    files = ModelFiles.open(find_model("demo"))
    weights = files.weights()
    hidden, vocab = files.config.hidden_size, files.config.vocab_size
    rng = np.random.default_rng(1)

    def make(*shape: int) -> np.ndarray[Any, Any]:
        return rng.normal(scale=0.1, size=shape).astype(np.float32)

    head = weights.outer[Role.HEAD].astype(np.float32).reshape(vocab, hidden)
    ids = np.arange(0, vocab, 2, dtype=np.int32)
    block = (64, 2 * hidden)
    return Heads(make(*block), make(*block), make(hidden, 64), head[ids], ids, vocab)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("heads")
    demo_heads().write(path)
    return path


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    with Engine.load("demo", "cpu", context=300, draft=folder) as loaded:
        yield loaded


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.7, "seed": 4, "min_p": 0.05},
        {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "logit_bias": {5: 3.0}},
        {"temperature": 0.5, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
        {"stop": "return"},
    ],
    ids=["greedy", "sampled", "limited", "penalised", "stopped"],
)
@pytest.mark.usefixtures("six_drafts")
def test_the_answer_is_the_same_behind_kept_prefixes(
    engine: Engine, params: dict[str, Any]
) -> None:
    given: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "logprobs": 2} | params
    plain = engine.generate(PROMPT, SamplingParams(speculation="off", **given))
    for speculation in ("heads", "auto"):
        got = engine.generate(PROMPT, SamplingParams(speculation=speculation, **given))  # type: ignore[arg-type]
        assert (got.text, got.token_ids, got.logprobs, got.finish_reason) == (
            plain.text,
            plain.token_ids,
            plain.logprobs,
            plain.finish_reason,
        )
        assert got.timings.cache_n > 0
        assert got.timings.drafters["heads"]["draft_n"] > 0


def test_what_is_written_is_read_again(folder: Path) -> None:
    """Weights as bfloat16, tokens as they are."""
    made, read = demo_heads(), Heads.open(folder)
    assert np.array_equal(made.tokens, read.tokens)
    for name in ("gate", "up", "down", "head"):
        values, found = getattr(made, name), getattr(read, name)
        # bfloat16 keeps 8 significant bits: half of the last is 2^-9 of the value.
        assert np.all(np.abs(values - found) <= np.abs(values) * 2.0**-8)
    assert (read.vocab_size, read.norm_eps) == (made.vocab_size, made.norm_eps)


def test_either_name_takes_them(folder: Path) -> None:
    with Engine.load("demo", "cpu", context=64, heads=folder) as loaded:
        assert loaded.backend.executor.drafter == "heads"
        with pytest.raises(RequestError, match="'draft' needs a draft model"):
            loaded.generate("def f(", SamplingParams(speculation="draft"))
    with pytest.raises(RequestError, match="heads: expected no draft beside them"):
        Engine.load("demo", "cpu", draft="int8", heads=folder)
    with pytest.raises(RequestError, match="draft: expected backend cpu"):
        Engine.load("demo", "reference", heads=folder)
    with pytest.raises(ConfigError, match=r"model_type: expected 'monolane_heads', got"):
        Engine.load("demo", "cpu", heads=find_model("demo"))
    with pytest.raises(ConfigError, match="heads: expected a folder that 'monolane tune heads'"):
        Engine.load("demo", "cpu", heads=folder / "nothing")
    asked = pytest.raises(RequestError, match="'heads' needs heads, which this engine was loaded")
    with Engine.load("demo", "cpu", context=64) as plain, asked:
        plain.generate("def f(", SamplingParams(speculation="heads"))


def test_those_of_another_model_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    heads = demo_heads()
    tensors = {n: getattr(heads, n) for n in ("gate", "up", "down", "head", "tokens")}

    def refused(error: type[Exception], match: str, **changed: Any) -> None:
        heads.write(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        sizes = {k: v for k, v in changed.items() if k in config}
        (tmp_path / "config.json").write_text(json.dumps(config | sizes))
        arrays = tensors | {k: v for k, v in changed.items() if k not in config}
        kept = [(name, x) for name, x in arrays.items() if x is not None]
        write_safetensors(tmp_path / "model.safetensors", kept)
        with pytest.raises(error, match=match):
            Engine.load("demo", "cpu", draft=tmp_path)

    refused(ConfigError, "vocab_size: expected 2048, the model's, got 4000", vocab_size=4000)
    refused(
        CheckpointError, r"gate: expected .* \[64, 64\].* got float32 \[64, 512\]", hidden_size=32
    )
    refused(CheckpointError, "up: expected it, got down, gate, head, tokens", up=None)
    down = heads.down.copy()
    down[3, 4] = np.nan
    refused(CheckpointError, "down: expected finite numbers", down=down)
    ids = heads.tokens.copy()
    ids[7] = ids[8]
    refused(ConfigError, "tokens: expected ids from 0 to 2047, each once", tokens=ids)
    ids[7] = 2048
    refused(ConfigError, "tokens: expected ids from 0 to 2047, each once", tokens=ids)
    refused(ConfigError, "inner_size: expected an integer from 1", inner_size=0)
    with pytest.raises(ConfigError, match="inner_size: expected a multiple of 32"):
        replace(heads, gate=heads.gate[:40], up=heads.up[:40], down=heads.down[:, :40])
