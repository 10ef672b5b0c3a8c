"""A distillation to which something happens: it goes on to the same bits, beside its output."""

import dataclasses
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from monolane.cli import app
from monolane.errors import BackendError, CheckpointError, ConfigError, RequestError, TrainingError
from monolane.hf import LaneformerForCausalLM
from monolane.tune import AnnealRecipe, distil_folder, retrofit_folder

from .test_anneal import Make, folders
from .test_sft import equal

__all__ = ["folders"]  # a fixture

RECIPE = AnnealRecipe(steps=6, rows_per_step=2, context=16)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.py"
    path.write_text(Path(__file__).read_text())
    return path


def changed(folder: Path, to: Path) -> Path:
    """A model of the same shapes and another bit."""
    shutil.copytree(folder, to)
    path = next(to.glob("*.safetensors"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    return to


def test_killed_or_stopped_it_ends_in_the_same_bits(
    folders: tuple[Path, Path], text: Path, tmp_path: Path
) -> None:
    whole = distil_folder(*folders, text, tmp_path / "whole", RECIPE)

    def ask(step: int, loss: float, share: float) -> None:
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    out, run = tmp_path / "out", tmp_path / "out.run"
    with pytest.raises(KeyboardInterrupt):
        distil_folder(*folders, text, out, RECIPE, save_every=3, report=ask)
    assert sorted(path.name for path in run.glob("checkpoint-*")) == [
        "checkpoint-3",
        "checkpoint-5",
    ]
    state = run / "checkpoint-5" / "state.pt"
    state.write_bytes(state.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="found one; continue it with --resume"):
        distil_folder(*folders, text, out, RECIPE)
    other = dataclasses.replace(RECIPE, peak_lr=1.0)
    with pytest.raises(CheckpointError, match="recipe: expected what the run began with"):
        distil_folder(*folders, text, out, other, resume=True)
    dense, delayed = folders
    with pytest.raises(CheckpointError, match="teacher: expected what the run began with"):
        distil_folder(changed(dense, tmp_path / "a"), delayed, text, out, RECIPE, resume=True)
    with pytest.raises(CheckpointError, match="student: expected what the run began with"):
        distil_folder(dense, changed(delayed, tmp_path / "b"), text, out, RECIPE, resume=True)
    facts = json.loads((run / "run.json").read_text())
    del facts["teacher"], facts["student"]  # a run begun before they were kept
    (run / "run.json").write_text(json.dumps(facts))
    said: list[str] = []
    healed = distil_folder(*folders, text, out, RECIPE, resume=True, say=said.append)
    assert said == [
        "the checkpoint of step 5 is left out: state.pt is not what was written (SHA-256)"
    ]
    assert healed == whole
    assert equal(out, tmp_path / "whole")


def test_what_diverges_is_not_written(
    folders: tuple[Path, Path], text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*_: Any, **__: Any) -> torch.Tensor:
        return torch.tensor(float("nan"))

    monkeypatch.setattr(torch.nn.utils, "get_total_norm", nothing)
    with pytest.raises(TrainingError, match="step 4: the gradient is not finite, 4 times in a row"):
        distil_folder(*folders, text, tmp_path / "out", RECIPE)
    assert not (tmp_path / "out").exists()
    with pytest.raises(BackendError, match="device: expected a GPU"):
        distil_folder(*folders, text, tmp_path / "b", RECIPE, device="cuda")
    with pytest.raises(RequestError, match="device: expected one of auto, cpu, cuda"):
        distil_folder(*folders, text, tmp_path / "b", RECIPE, device="abacus")


@pytest.mark.parametrize("delay", [-1, 3, 8])
def test_a_delay_that_the_layers_cannot_have(delay: int, llama: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"delay: expected 0 to 2, .* got {delay}; give a"):
        retrofit_folder(llama(), tmp_path / "out", lanes=4, delay=delay)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["--steps", "3"], "--steps"),
        (["--resume"], "--resume"),
        (["--device", "cpu"], "--device"),
        (["--learning-rate", "1"], "--learning-rate"),
        (["--early"], "--early"),
    ],
)
def test_options_without_effect_are_refused(
    arguments: list[str], option: str, tmp_path: Path
) -> None:
    result = CliRunner().invoke(app, ["retrofit", "-m", "x", "-o", str(tmp_path / "y"), *arguments])
    assert result.exit_code == 2, result.output
    assert option in result.stderr


def test_it_is_staged_beside_the_output(
    llama: Make, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []
    load = LaneformerForCausalLM.from_pretrained

    def loaded(folder: Path, **options: Any) -> Any:
        seen.append(Path(folder))
        return load(folder, **options)

    monkeypatch.setattr(LaneformerForCausalLM, "from_pretrained", loaded)
    out = tmp_path / "deep" / "out"
    shape = ["--lanes", "4", "--delay", "1", "--distil", str(text)]
    length = ["--steps", "2", "--rows", "1", "--window", "16"]
    result = CliRunner().invoke(
        app, ["retrofit", "-m", str(llama()), "-o", str(out), *shape, *length]
    )
    assert result.exit_code == 0, result.output
    assert {folder.parents[2] for folder in seen} == {out.parent}
    assert sorted(path.name for path in out.parent.iterdir()) == ["out", "out.run"]
