"""Training heads: they learn, a stopped run ends in the same bits, and what is written drafts."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra 'sft'")
pytest.importorskip("transformers", reason="needs the extra 'sft'")

from monolane import Engine, SamplingParams
from monolane.errors import CheckpointError, ConfigError, TextError
from monolane.model import Heads
from monolane.sources import find_model
from monolane.text import Tokenizer
from monolane.tune import HeadsRecipe, read_windows, train_heads

# A text that says the same again and again: what follows is soon learnt.
LINE = "def read(self, path):\n    with open(path) as file:\n        return file.read()\n\n"
RECIPE = HeadsRecipe(
    texts=4, context=64, vocabulary=256, inner=64, depth=3, steps=40, places=64, peak_lr=1e-2
)


class StopError(Exception):
    """Ends a run from outside."""


NAMES = ("gate", "up", "down", "head", "tokens")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "lines.txt"
    path.write_text(LINE * 60)
    return path


@pytest.fixture(scope="module")
def made(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained on the text."""
    out = tmp_path_factory.mktemp("made") / "heads"
    losses: list[float] = []
    trained = train_heads(
        "demo", out, RECIPE, text=text, threads=1, report=lambda _, loss: losses.append(loss)
    )
    assert len(losses) == RECIPE.steps
    assert losses[-1] < losses[0] / 2
    # The second token of a draft is known only from the first: the chain reads what it drafted.
    assert min(trained.right) > 0.5 > max(trained.right_before)
    assert trained.bytes == 2 * 64 * 512 + 256 * 64 + 256 * 256
    return out


def test_what_was_trained_drafts(made: Path) -> None:
    params = {"max_tokens": 60, "ignore_eos": True}
    with Engine.load("demo", "cpu", context=300, heads=made) as engine:
        plain = engine.generate(LINE * 2, SamplingParams(speculation="off", **params))  # type: ignore[arg-type]
        got = engine.generate(LINE * 2, SamplingParams(speculation="heads", **params))  # type: ignore[arg-type]
    assert got.token_ids == plain.token_ids


def test_stopped_it_ends_in_the_same_bits(made: Path, text: Path, tmp_path: Path) -> None:
    """Once while it reads, and once amid the steps."""
    out = tmp_path / "heads"

    def reading() -> None:
        nonlocal texts
        texts += 1
        if texts == 2:
            raise StopError

    def stepping(step: int, loss: float) -> None:
        if step == 25:
            raise StopError

    texts = 0
    how: dict[str, Any] = {"text": text, "threads": 1, "save_every": 10}
    with pytest.raises(StopError):
        train_heads("demo", out, RECIPE, read=reading, **how)
    with pytest.raises(StopError):
        train_heads("demo", out, RECIPE, resume=True, report=stepping, **how)
    first: list[int] = []
    train_heads("demo", out, RECIPE, resume=True, report=lambda step, _: first.append(step), **how)
    assert first[0] == 20
    once, again = Heads.open(made), Heads.open(out)
    assert all(np.array_equal(getattr(once, n), getattr(again, n)) for n in NAMES)


def test_it_resumes_by_what_model_and_text_hold(text: Path, tmp_path: Path) -> None:
    """Not by their names: a folder may be moved, and what lies in one may be replaced."""
    tiny = HeadsRecipe(texts=2, context=16, vocabulary=64, inner=32, depth=2, steps=2, places=8)
    model, moved, said = (tmp_path / name for name in ("model", "moved", "said.txt"))
    shutil.copytree(find_model("demo"), model)
    shutil.copy(text, said)
    train_heads(model, tmp_path / "heads", tiny, text=said, threads=1)
    model.rename(moved)
    how: dict[str, Any] = {"text": said, "threads": 1, "resume": True, "overwrite": True}
    train_heads(moved, tmp_path / "heads", tiny, **how)
    (tmp_path / "other.txt").write_text(LINE * 59)
    with pytest.raises(CheckpointError, match="texts: expected what the run began with"):
        train_heads(moved, tmp_path / "heads", tiny, **how | {"text": tmp_path / "other.txt"})
    weights = moved / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-2] ^= 1  # the last bit of the last weight
    weights.write_bytes(content)
    with pytest.raises(CheckpointError, match="weights: expected what the run began with"):
        train_heads(moved, tmp_path / "heads", tiny, **how)


def test_no_text_is_read_twice(text: Path, tmp_path: Path) -> None:
    """Else what is held out would be learnt from, and the shares at the end would say nothing."""
    tiny = HeadsRecipe(texts=500, context=48, vocabulary=64, inner=32, depth=2, steps=1, places=8)
    train_heads("demo", tmp_path / "heads", tiny, text=text, threads=1)
    tokenizer = Tokenizer.open(find_model("demo"))
    assert tokenizer is not None
    windows = read_windows(text, tokenizer, 48, 0)
    texts = len(windows.train_RC) + len(windows.held_out_RC)
    assert len(list((tmp_path / "heads.run" / "texts").glob("*.npz"))) == texts < 500


def test_its_own_text_and_what_is_refused(made: Path, text: Path, tmp_path: Path) -> None:
    small = HeadsRecipe(texts=2, context=48, vocabulary=64, inner=32, depth=2, steps=2, places=8)
    train_heads("demo", tmp_path / "own", small, threads=1)
    assert Heads.open(tmp_path / "own").head.shape == (64, 256)
    with pytest.raises(CheckpointError, match="expected no such folder"):
        train_heads("demo", made, small)
    with pytest.raises(ConfigError, match="texts: expected some with more than depth = 70"):
        train_heads("demo", tmp_path / "deep", replace(RECIPE, depth=70), text=text, threads=1)
    with pytest.raises(ConfigError, match="inner: expected a multiple of 32, got 48"):
        HeadsRecipe(inner=48)
    bare = tmp_path / "bare"
    shutil.copytree(find_model("demo"), bare, ignore=shutil.ignore_patterns("tokenizer*"))
    with pytest.raises(TextError, match="expected a tokenizer"):
        train_heads(bare, tmp_path / "deaf", small, text=text, threads=1)
    assert not (tmp_path / "deaf.run").exists()
