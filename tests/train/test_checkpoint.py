from pathlib import Path

import pytest
import torch

from monolane.errors import CheckpointError
from monolane.train import DemoRecipe
from monolane.train._checkpoint import Checkpoint


def _checkpoint(recipe: DemoRecipe) -> Checkpoint:
    return Checkpoint(
        recipe=recipe,
        corpus="0123",
        precision="float32",
        steps=10,
        step=4,
        seconds=1.5,
        model={"weight": torch.arange(3.0)},
        optimiser=[{"state": {0: {"momentum": torch.ones(3)}}}],
    )


def test_what_is_saved_is_read_back(recipe: DemoRecipe, tmp_path: Path) -> None:
    assert not Checkpoint.exists(tmp_path)
    _checkpoint(recipe).save(tmp_path)
    assert Checkpoint.exists(tmp_path)
    kept = Checkpoint.load(tmp_path)
    assert kept.recipe == recipe
    assert (kept.steps, kept.step, kept.seconds) == (10, 4, 1.5)
    assert torch.equal(kept.model["weight"], torch.arange(3.0))
    assert torch.equal(kept.optimiser[0]["state"][0]["momentum"], torch.ones(3))


def test_a_kill_during_the_write_leaves_the_one_before(
    recipe: DemoRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _checkpoint(recipe).save(tmp_path)

    def cut_short(values: object, file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", cut_short)
    with pytest.raises(KeyboardInterrupt):
        _checkpoint(recipe).save(tmp_path)
    assert Checkpoint.load(tmp_path).step == 4


def test_errors_say_what_to_do(recipe: DemoRecipe, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="found none; start without --resume"):
        Checkpoint.load(tmp_path)
    (tmp_path / "checkpoint.pt").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="could not read it .*start without --resume"):
        Checkpoint.load(tmp_path)
    torch.save({"version": 99}, tmp_path / "checkpoint.pt")
    with pytest.raises(CheckpointError, match="expected format 1, got 99"):
        Checkpoint.load(tmp_path)
