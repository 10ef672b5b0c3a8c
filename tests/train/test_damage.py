"""Damaged checkpoints: found by their sums, told in a line, and the one before is used."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from monolane.errors import CheckpointError
from monolane.train import Observer, RunConfig, StepRecord, export_run, train_run
from monolane.train._checkpoints import (
    Progress,
    Store,
    checkpoint_folder,
    checkpoint_steps,
    named_checkpoint,
)
from monolane.train._checksums import find_damage, is_sealed, write_seal
from monolane.train._process_group import open_world


class Ear:
    """Observer that remembers what it was told."""

    def __init__(self) -> None:
        self.events: list[tuple[int, str, str]] = []
        self.losses: dict[int, float] = {}

    def __call__(self, start: int) -> tuple[Observer, ...]:
        return (self,)

    def step(self, record: StepRecord) -> None:
        self.losses[record.step] = record.loss

    def validation(self, step: int, scores: Mapping[str, float]) -> None:
        pass

    def event(self, step: int, kind: str, text: str) -> None:
        self.events.append((step, kind, text))

    def close(self) -> None:
        pass


def cut(folder: Path) -> None:
    share = folder / "__0_0.distcp"
    share.write_bytes(share.read_bytes()[:-100])


def flip(folder: Path) -> None:
    share = folder / "__0_0.distcp"
    content = bytearray(share.read_bytes())
    content[len(content) // 2] ^= 4
    share.write_bytes(content)


def flip_progress(folder: Path) -> None:
    path = folder / "progress.json"
    path.write_text(path.read_text().replace('"tokens": 0', '"tokens": 8'))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (cut, "__0_0.distcp is not what was written"),
    "missing": (lambda f: (f / "__0_0.distcp").unlink(), "__0_0.distcp: No such file"),
    "empty metadata": (lambda f: (f / ".metadata").write_bytes(b""), ".metadata is not what was"),
    "no metadata": (lambda f: (f / ".metadata").unlink(), ".metadata: No such file"),
    "a bit": (flip, "__0_0.distcp is not what was written"),
    "progress": (flip_progress, "progress.json is not what was written"),
    "no progress": (lambda f: (f / "progress.json").unlink(), "progress.json: No such file"),
    "sums": (lambda f: (f / "sums-0-of-1.json").write_bytes(b"\xff"), "sums-0-of-1.json cannot be"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_one_before_is_used(damage: str, tiny: RunConfig, tmp_path: Path) -> None:
    harm, said = DAMAGES[damage]
    with open_world(tiny) as world:
        store = Store(tmp_path, 3, world)
        for step in (4, 8):
            store.save(Progress(step=step), {"w": torch.full((1000,), float(step))})
            store.wait(Progress(step=step))
        assert named_checkpoint(tmp_path) == checkpoint_folder(tmp_path, 8)
        harm(checkpoint_folder(tmp_path, 8))
        assert store.newest() == 4
        told = store.damaged()
        assert list(told) == [8]
        assert said in told[8]
        with pytest.raises(CheckpointError, match="expected a whole checkpoint, but .*the one bef"):
            named_checkpoint(tmp_path)  # of a run to begin with: the user chooses
        harm(checkpoint_folder(tmp_path, 4))
        with pytest.raises(CheckpointError, match=r"those after 4, 8 steps are damaged; put back"):
            store.newest()


def test_a_run_goes_on_from_before_and_says_why(tiny: RunConfig, tmp_path: Path) -> None:
    schedule = replace(tiny.schedule, steps=6, decay=2)
    checkpoint = replace(tiny.checkpoint, every=2, keep=3)
    config, run = replace(tiny, schedule=schedule, checkpoint=checkpoint), tmp_path / "run"
    whole, again = Ear(), Ear()
    train_run(config, run, whole)
    assert checkpoint_steps(run) == [2, 4, 6]
    flip(checkpoint_folder(run, 6))
    with pytest.raises(CheckpointError, match="is not what was written.*--step"):
        export_run(run, tmp_path / "model")
    assert train_run(config, run, again, resume=True).step == 6
    (told,) = [one for one in again.events if one[1] == "damaged"]
    text = "the checkpoint of step 6 is left out: __0_0.distcp is not what was written (SHA-256)"
    assert told == (4, "damaged", text)
    assert again.losses == {step: whole.losses[step] for step in (5, 6)}
    assert checkpoint_steps(run) == [2, 4, 6]  # the damaged one was written anew


def test_every_process_seals_its_own(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"__{rank}_0.distcp").write_bytes(bytes(10))
    write_seal(tmp_path, [tmp_path / "__0_0.distcp"], 0, 2)
    assert not is_sealed(tmp_path)  # killed before the second was done
    write_seal(tmp_path, [tmp_path / "__1_0.distcp"], 1, 2)
    assert is_sealed(tmp_path)
    assert find_damage(tmp_path) is None
    (tmp_path / "__1_0.distcp").write_bytes(bytes(9))
    assert find_damage(tmp_path) == "__1_0.distcp is not what was written (SHA-256)"
