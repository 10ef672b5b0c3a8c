"""Checkpoints: whole or not at all, and taken before the next step changes what they hold."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from monolane.errors import CheckpointError
from monolane.train import Progress, RunConfig
from monolane.train._checkpoints import Store, checkpoint_folder, checkpoint_steps
from monolane.train._process_group import World, open_world


@pytest.fixture
def world(tiny: RunConfig) -> Iterator[World]:
    with open_world(tiny) as opened:
        yield opened


def _save(store: Store, step: int, tensors: dict[str, Tensor], **fields: object) -> Progress:
    progress = replace(Progress(step=step, corpus="c"), **fields)  # type: ignore[arg-type]
    store.save(progress, tensors)
    store.wait(progress)
    return progress


def test_a_checkpoint_is_what_was_there_when_it_was_asked_for(world: World, tmp_path: Path) -> None:
    store, tensors = Store(tmp_path, 3, world), {"w": torch.arange(100_000.0)}
    progress = Progress(step=7, next_row=56, tokens=3584, skipped=((8, 16),), guard={"a": [1.5]})
    store.save(progress, tensors)
    tensors["w"].zero_()  # the next step, while the disk is still busy
    store.wait(progress)
    torch.manual_seed(99)
    got = {"w": torch.empty(100_000)}
    assert store.load(7, got) == progress
    assert torch.equal(got["w"], torch.arange(100_000.0))


def test_the_generators_come_back(world: World, tmp_path: Path) -> None:
    store = Store(tmp_path, 3, world)
    torch.manual_seed(5)
    _save(store, 1, {"w": torch.zeros(1)})
    drawn = torch.rand(3)
    store.load(1, {"w": torch.zeros(1)})
    assert torch.equal(torch.rand(3), drawn)


def test_the_last_ones_and_the_best_are_kept(world: World, tmp_path: Path) -> None:
    store, tensors = Store(tmp_path, 2, world), {"w": torch.zeros(1)}
    for step in range(1, 6):
        _save(store, step, tensors, best_step=2 if step >= 2 else -1)
    assert checkpoint_steps(tmp_path) == [2, 4, 5]
    assert store.newest() == 5
    assert store.newest(before=5) == 4


def test_half_a_checkpoint_does_not_count(world: World, tmp_path: Path) -> None:
    store, tensors = Store(tmp_path, 3, world), {"w": torch.ones(1)}
    _save(store, 4, tensors)
    _save(store, 8, tensors)
    (checkpoint_folder(tmp_path, 8) / ".metadata").unlink()  # killed before the last write
    assert store.newest() == 4
    store.drop_after(4)
    assert not checkpoint_folder(tmp_path, 8).exists()
    _save(store, 8, {"w": torch.zeros(1)})
    assert store.newest() == 8


def test_errors_say_what_to_do(world: World, tmp_path: Path) -> None:
    store = Store(tmp_path, 3, world)
    assert store.newest() is None
    _save(store, 1, {"w": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r"a tensor 'v' .*go on with the \[model\] and"):
        store.load(1, {"v": torch.zeros(1)})
    path = checkpoint_folder(tmp_path, 1) / "progress.json"
    path.write_text(json.dumps({"version": 99}))
    with pytest.raises(CheckpointError, match="expected format 1, got 99; use the version"):
        store.load(1, {"w": torch.zeros(1)})
    path.write_text("{")
    with pytest.raises(CheckpointError, match="remove this checkpoint, and the one before it is"):
        store.load(1, {"w": torch.zeros(1)})
