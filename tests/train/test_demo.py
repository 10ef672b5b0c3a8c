"""Whole runs of a tiny demo: it learns, its folder loads, and a kill changes nothing."""

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from monolane.errors import BackendError, CheckpointError, ConfigError
from monolane.train import DemoRecipe, Measured, train_demo
from monolane.train._journal import Journal
from monolane.train._record import StepRecord

_STEPS = 24


class Killed(BaseException):
    """Stands for SIGKILL: nothing gets to tidy up."""


def _train(out: Path, recipe: DemoRecipe, library: Path, **options: object) -> Measured:
    values = {"steps": _STEPS, "recipe": recipe, "library": library, **options}
    return train_demo(out, **values)  # type: ignore[arg-type]


def _at(step: int, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something when a step has been recorded, before its state is kept."""
    note = Journal.step

    def noted(journal: Journal, record: StepRecord) -> None:
        note(journal, record)
        if record.step == step + 1:
            act()

    monkeypatch.setattr(Journal, "step", noted)


def _kill() -> None:
    raise Killed


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def whole(
    library: Path, tmp_path_factory: pytest.TempPathFactory, recipe: DemoRecipe
) -> tuple[Path, Measured]:
    """A run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole") / "model"
    return out, _train(out, recipe, library)


def test_the_loss_falls(whole: tuple[Path, Measured]) -> None:
    out, measured = whole
    lines = (out.with_name("model.run") / "log.jsonl").read_text().splitlines()
    losses = [line["loss"] for line in map(json.loads, lines) if "loss" in line]
    assert len(losses) == _STEPS
    # A uniform guess is ln 512 = 6.24; the frequencies of tokens alone are worth half a nat.
    assert losses[0] == pytest.approx(6.24, abs=0.1)
    assert sum(losses[-4:]) / 4 < 5.7
    assert measured.tokens_seen == _STEPS * 256
    # 6.24 nats per token are 9 bits; held-out text must profit too.
    assert measured.score.bits / measured.score.tokens < 8.5


def test_the_folder_loads(whole: tuple[Path, Measured]) -> None:
    out, measured = whole
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert type(model).__name__ == "LaneformerForCausalLM"
    assert model.dtype == torch.bfloat16
    assert sum(p.numel() for p in model.parameters()) == measured.parameters
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    ids = tokenizer("import json\n", return_tensors="pt").input_ids
    written = model.generate(ids, max_new_tokens=4, do_sample=False)
    assert written.shape[1] <= ids.shape[1] + 4
    config = json.loads((out / "config.json").read_text())
    assert config["model_type"] == "laneformer"
    assert config["torch_dtype"] == "bfloat16"
    weights = load_file(out / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert measured.weight_bytes == (out / "model.safetensors").stat().st_size


def test_the_figures_are_those_of_the_shipped_weights(whole: tuple[Path, Measured]) -> None:
    out, measured = whole
    assert Measured.load(out.with_name("model.run")) == measured
    card = (out / "README.md").read_text()
    assert f"**{measured.score.bits_per_byte:.3f}**" in card
    assert measured.score.bytes == measured.held_out.bytes
    # Every id but the first of each file.
    assert measured.score.tokens == measured.held_out.tokens - measured.held_out.files


def test_killed_and_resumed_ends_in_the_same_bits(
    whole: tuple[Path, Measured],
    recipe: DemoRecipe,
    library: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "model"
    with monkeypatch.context() as patch:
        _at(7, _interrupt, patch)
        with pytest.raises(KeyboardInterrupt):
            _train(out, recipe, library)
    assert not out.exists()
    with monkeypatch.context() as patch:
        _at(12, _kill, patch)  # steps 8 to 12 are lost and done again
        with pytest.raises(Killed):
            _train(out, recipe, library, resume=True, steps=None)
    measured = _train(out, recipe, library, resume=True, steps=None)
    expected, got = (load_file(path / "model.safetensors") for path in (whole[0], out))
    assert expected.keys() == got.keys()
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    assert measured.score == whole[1].score


def _swapped(tokenizer: str) -> str:
    """Give the last two tokens each other's ids: hardly any text has them."""
    values = json.loads(tokenizer)
    vocabulary = values["model"]["vocab"]
    one, two = sorted(vocabulary, key=vocabulary.get)[-2:]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    return json.dumps(values)


def test_a_run_begins_with_the_weights_of_another(
    whole: tuple[Path, Measured], recipe: DemoRecipe, library: Path, tmp_path: Path
) -> None:
    begin = tmp_path / "first"
    shutil.copytree(whole[0], begin)
    (begin / "tokenizer.json").write_text(_swapped((begin / "tokenizer.json").read_text()))
    out = tmp_path / "model"
    measured = _train(out, recipe, library, begin_with=begin, steps=4, seed=1)
    lines = (out.with_name("model.run") / "log.jsonl").read_text().splitlines()
    losses = [line["loss"] for line in map(json.loads, lines) if "loss" in line]
    assert losses[0] < 5.7, "random weights begin at 6.24"
    digest = hashlib.sha256((begin / "model.safetensors").read_bytes()).hexdigest()
    assert measured.recipe.begins_with == digest
    card = (out / "README.md").read_text()
    assert digest in card
    assert "--seed 1 --from START" in card
    # A model keeps its vocabulary, though this library would give another.
    read, written = (json.loads((path / "tokenizer.json").read_text()) for path in (begin, out))
    assert written["model"]["vocab"] == read["model"]["vocab"]
    # The run keeps what it began with, so that it can go on without the folder.
    shutil.rmtree(begin)
    again = _train(out, recipe, library, resume=True, steps=None)
    assert again.score == measured.score


def test_a_beginning_that_is_no_model_is_refused(
    recipe: DemoRecipe, library: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="expected the folder of a demo model .* lacks config"):
        _train(tmp_path / "model", recipe, library, begin_with=library)


def test_a_second_run_is_not_started_over_the_first(
    whole: tuple[Path, Measured], recipe: DemoRecipe, library: Path
) -> None:
    with pytest.raises(CheckpointError, match="found one; continue it with --resume"):
        _train(whole[0], recipe, library)


def test_a_finished_run_keeps_its_length(
    whole: tuple[Path, Measured], recipe: DemoRecipe, library: Path
) -> None:
    with pytest.raises(ConfigError, match=r"schedule\.\w+: expected .* did its 24 steps"):
        _train(whole[0], recipe, library, resume=True, steps=30)


def test_a_run_may_be_shortened_before_its_decay(
    recipe: DemoRecipe, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model"
    with monkeypatch.context() as patch:
        _at(2, _interrupt, patch)
        with pytest.raises(KeyboardInterrupt):
            _train(out, recipe, library)
    measured = _train(out, recipe, library, resume=True, steps=6)
    assert measured.steps == 6


def test_another_corpus_is_refused(
    whole: tuple[Path, Measured], recipe: DemoRecipe, library: Path, tmp_path: Path
) -> None:
    for path in library.rglob("*.py"):
        copy = tmp_path / path.relative_to(library)
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (tmp_path / "another.py").write_text("another = 1\n")
    with pytest.raises(CheckpointError, match="expected the corpus .* that the run began with"):
        _train(whole[0], recipe, tmp_path, resume=True, steps=None)


@pytest.mark.parametrize("option", ["minutes", "steps", "threads"])
def test_a_length_of_nothing_is_refused(option: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{option}: expected more than 0, got 0"):
        train_demo(tmp_path / "model", **{option: 0})  # type: ignore[arg-type]


def test_compiling_needs_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match="expected a C\\+\\+ compiler .* found none"):
        train_demo(tmp_path / "model", compiled=True)
