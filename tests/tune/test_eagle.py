"""Training EAGLE-3 drafters: they learn, a stopped run ends in the same bits, and they draft."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra 'sft'")
pytest.importorskip("transformers", reason="needs the extra 'sft'")

from monolane import Engine, SamplingParams
from monolane.engine import ModelFiles
from monolane.errors import ConfigError
from monolane.model import Eagle, Role, Rotary
from monolane.reference import ReferenceEagle, ReferenceModel
from monolane.sources import find_model
from monolane.tune import EagleRecipe, read_windows, train_eagle
from tests.random_models import write_random_model

# A text that says the same again and again: what follows is soon learnt.
LINE = "def read(self, path):\n    with open(path) as file:\n        return file.read()\n\n"
RECIPE = EagleRecipe(
    texts=10, context=64, vocabulary=256, inner=96, depth=3, steps=240, places=1, peak_lr=5e-3
)
MODEL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
}


class StopError(Exception):
    """Ends a run from outside."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model with the demo model's tokenizer."""
    return _random_model(tmp_path_factory.mktemp("models") / "model", MODEL)


def _random_model(folder: Path, config: dict[str, Any]) -> Path:
    """Write a model of a config, which is sure of what it says, with the demo's tokenizer."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(find_model("demo") / name, folder)

    def change(name: str, x: np.ndarray) -> np.ndarray:
        sure = name == "lm_head.weight"  # so that the model is sure of what it says
        return x * np.float32(40) if sure else x

    return write_random_model(folder, config, scale=0.2, change=change)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "lines.txt"
    path.write_text(LINE * 60)
    return path


@pytest.fixture(scope="module")
def made(model: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained on the text."""
    out = tmp_path_factory.mktemp("made") / "eagle"
    losses: list[float] = []
    trained = train_eagle(
        model, out, RECIPE, text=text, threads=1, report=lambda _, loss: losses.append(loss)
    )
    assert len(losses) == RECIPE.steps
    assert losses[-1] < losses[0] / 2, (trained, losses[::20])
    assert min(trained.right) > 0.5 > max(trained.right_before), trained
    return out


def test_what_was_trained_is_what_drafts(model: Path, made: Path, text: Path) -> None:
    """The oracle, given what was written, drafts what the model says of that text."""
    files = ModelFiles.open(model)
    weights, eagle, tokenizer = files.weights(), Eagle.open(made), files.tokenizer()
    assert tokenizer is not None
    assert eagle.layers == (2, 3, 3)
    ids = read_windows(text, tokenizer, RECIPE.context, RECIPE.seed).train_RC[0].tolist()
    reference = ReferenceModel(weights)
    streams = np.concatenate(reference.streams(ids, reference.new_cache(), (2, 3, 3)), axis=-1)
    said = reference.forward(ids, reference.new_cache()).argmax(axis=-1)
    embedding = weights.outer[Role.EMBEDDING].reshape(MODEL["vocab_size"], -1)
    drafter = ReferenceEagle(eagle, embedding)
    right = [
        drafter.draft(ids[1 : i + 1], streams[:i], 1)[0] == said[i] for i in range(20, len(ids))
    ]
    assert np.mean(right) > 0.5
    params = {"max_tokens": 40, "ignore_eos": True}
    with Engine.load(model, "cpu", dtype="float32", draft=made) as engine:
        assert engine.backend.executor.drafter == "heads"
        plain = engine.generate(ids, SamplingParams(speculation="off", **params))  # type: ignore[arg-type]
        got = engine.generate(ids, SamplingParams(speculation="heads", **params))  # type: ignore[arg-type]
    assert got.token_ids == plain.token_ids


def test_stopped_it_ends_in_the_same_bits(
    model: Path, made: Path, text: Path, tmp_path: Path
) -> None:
    """Once while it reads, and once amid the steps."""
    out = tmp_path / "eagle"
    texts = 0

    def reading() -> None:
        nonlocal texts
        texts += 1
        if texts == 12:  # of streams, behind the ten that the engine read
            raise StopError

    def stepping(step: int, loss: float) -> None:
        if step == 25:
            raise StopError

    how: dict[str, Any] = {"text": text, "threads": 1, "save_every": 10}
    with pytest.raises(StopError):
        train_eagle(model, out, RECIPE, read=reading, **how)
    with pytest.raises(StopError):
        train_eagle(model, out, RECIPE, resume=True, report=stepping, **how)
    first: list[int] = []
    train_eagle(model, out, RECIPE, resume=True, report=lambda step, _: first.append(step), **how)
    assert first[0] == 20
    once, again = Eagle.open(made), Eagle.open(out)
    assert np.array_equal(once.tokens, again.tokens)
    assert all(np.array_equal(x, again.weights[name]) for name, x in once.weights.items())


def test_models_that_have_no_one_stream_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a model of one lane, .* got 8 lanes"):
        train_eagle("demo", tmp_path / "eagle", RECIPE, text=tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, id="stretched"),
        pytest.param(
            {"model_type": "glm4", "head_dim": 16, "partial_rotary_factor": 0.5}, id="interleaved"
        ),
    ],
)
def test_a_drafter_turns_its_heads_plainly_whatever_the_model_does(
    text: Path, tmp_path: Path, config: dict[str, Any]
) -> None:
    folder = _random_model(tmp_path / "model", MODEL | config)
    train_eagle(folder, tmp_path / "eagle", replace(RECIPE, steps=2), text=text, threads=1)
    assert Eagle.open(tmp_path / "eagle").rotary == Rotary(10000.0, "half")
    with Engine.load(folder, "cpu", draft=tmp_path / "eagle") as engine:
        assert engine.backend.executor.drafter == "heads"
        said = [
            engine.generate([1, 2, 3], SamplingParams(max_tokens=12, speculation=drafts)).token_ids
            for drafts in ("off", "heads")
        ]
    assert said[0] == said[1]
