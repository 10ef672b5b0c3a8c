"""The checkpoints of a run: written in the background by all processes, whole or not at all.

    <run>/checkpoints/step-00001200/
        progress.json          where the run is; written first
        __<rank>_<n>.distcp    each process's shares of weights and optimizer state
        .metadata              written last, by the first process: with it the checkpoint counts

The format is PyTorch's distributed checkpoint (DCP): a run may go on with another number of
processes, which then read other shares of the same tensors.
"""

import json
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from monolane._toml import read_table
from monolane.errors import CheckpointError
from monolane.train._world import World

FOLDER = "checkpoints"
PROGRESS = "progress.json"
_WHOLE = ".metadata"
_VERSION = 1


@dataclass(frozen=True)
class Progress:
    """Where a run is: what a checkpoint says besides tensors."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    step: int = 0  # steps done
    next_row: int = 0  # the first row of the data that is not read yet
    tokens: int = 0  # trained on, rows that a rollback skipped left out
    seconds: float = 0.0  # spent in steps
    corpus: str = ""  # digest of the prepared corpus
    best_step: int = -1  # with the best validation; -1: none yet
    best_score: float = float("inf")
    guard: dict[str, Any] = field(default_factory=dict)  # state of the spike guard
    skipped: tuple[tuple[int, int], ...] = ()  # rows [first, last) that rollbacks left out

    def write(self, folder: Path) -> None:
        """Write ``progress.json`` of a checkpoint, replacing the one before in one step."""
        text = json.dumps({"version": _VERSION, **asdict(self)}, indent=1) + "\n"
        unfinished = folder / f"{PROGRESS}.tmp"
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(folder / PROGRESS)

    @classmethod
    def read(cls, folder: Path) -> "Progress":
        """Read it back; CheckpointError where it is damaged or of another version."""
        path = folder / PROGRESS
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            version = value.pop("version")
            progress = read_table(cls, value, PROGRESS)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{path}: expected the progress of a run, got {type(error).__name__}: {error}; "
                "remove this checkpoint, and the one before it is used"
            ) from None
        if version != _VERSION:
            raise CheckpointError(
                f"{path}: expected format {_VERSION}, got {version}; use the version of "
                "monolane that wrote it"
            )
        return progress


def checkpoint_folder(run: Path, step: int) -> Path:
    """Return where the checkpoint after ``step`` steps lies."""
    return run / FOLDER / f"step-{step:08d}"


def checkpoint_steps(run: Path) -> list[int]:
    """Return the steps of a run's whole checkpoints, in order."""
    found = (run / FOLDER).glob(f"step-*/{_WHOLE}")
    return sorted(int(path.parent.name.removeprefix("step-")) for path in found)


def named_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint that a folder is, or the newest of a run; None where it is neither."""
    if (folder / _WHOLE).is_file():
        return folder
    steps = checkpoint_steps(folder)
    return checkpoint_folder(folder, steps[-1]) if steps else None


def read_tensors(folder: Path, tensors: Mapping[str, Tensor], group: Any, hint: str) -> None:
    """Fill live tensors from a checkpoint, each process its own shares of them.

    CheckpointError with ``hint`` where one of them is not in it.
    """
    known = FileSystemReader(folder).read_metadata().state_dict_metadata
    if missing := sorted(tensors.keys() - known.keys()):
        raise CheckpointError(
            f"{folder}: expected a tensor {missing[0]!r} (and {len(missing) - 1} more that are "
            f"not there); {hint}"
        )
    load(dict(tensors), checkpoint_id=str(folder), process_group=group)


class Store:
    """Keeps the checkpoints of one run; every process calls every method, in the same order."""

    def __init__(self, run: Path, keep: int, world: World) -> None:
        self._run = run
        self._keep = keep
        self._world = world
        self._pending: Future[Any] | None = None
        self._pending_step = 0
        self._finished: list[int] = []

    def save(self, progress: Progress, tensors: Mapping[str, Tensor]) -> None:
        """Start to write a checkpoint; returns when the tensors are copied and may change."""
        self.wait(progress)
        folder = checkpoint_folder(self._run, progress.step)
        if self._world.is_first:
            shutil.rmtree(folder, ignore_errors=True)  # of a run that died while it wrote
            folder.mkdir(parents=True)
            progress.write(folder)
        self._world.wait()
        pending = async_save(
            {**tensors, **self._random_state()},
            checkpoint_id=str(folder),
            process_group=self._world.files,
        )
        assert isinstance(pending, Future), "the default stager returns no response object"
        self._pending, self._pending_step = pending, progress.step

    def finished(self) -> list[int]:
        """Return the steps of checkpoints that have become whole since the last call."""
        if self._pending is not None and self._pending.done():
            self._take()
        finished, self._finished = self._finished, []
        return finished

    def wait(self, progress: Progress) -> None:
        """Wait until what was started is on disk, then remove what need not be kept."""
        if self._pending is not None:
            self._take()
        if self._world.is_first:
            steps = checkpoint_steps(self._run)
            for step in set(steps[: -self._keep]) - {progress.best_step}:
                self._remove(step)

    def settle(self) -> None:
        """Let what was started come to its end, good or bad: the run is failing anyway."""
        if self._pending is not None:
            self._pending.exception()

    def load(self, step: int, tensors: Mapping[str, Tensor]) -> Progress:
        """Fill the live tensors from the checkpoint after ``step`` steps; return its progress."""
        folder = checkpoint_folder(self._run, step)
        known = FileSystemReader(folder).read_metadata().state_dict_metadata
        random = {name: state for name, state in self._random_state().items() if name in known}
        hint = "go on with the [model] and [optimizer] that the run began with"
        read_tensors(folder, {**tensors, **random}, self._world.files, hint)
        self._set_random_state(random)
        return Progress.read(folder)

    def newest(self, before: int | None = None) -> int | None:
        """Return the step of the newest whole checkpoint, or the newest before step ``before``."""
        steps = [s for s in checkpoint_steps(self._run) if before is None or s < before]
        found: int | None = self._world.tell(steps[-1] if steps else None)
        return found

    def drop_after(self, step: int) -> None:
        """Remove checkpoints of later steps, which the run will do again, and unfinished ones."""
        if self._world.is_first:
            whole = set(checkpoint_steps(self._run))
            for path in (self._run / FOLDER).glob("step-*"):
                number = int(path.name.removeprefix("step-"))
                if number > step or number not in whole:
                    self._remove(number)
        self._world.wait()

    def _take(self) -> None:
        assert self._pending is not None
        self._pending.result()
        self._pending = None
        self._finished.append(self._pending_step)

    def _remove(self, step: int) -> None:
        folder = checkpoint_folder(self._run, step)
        (folder / _WHOLE).unlink(missing_ok=True)  # first: half of it must not count
        shutil.rmtree(folder, ignore_errors=True)

    def _random_state(self) -> dict[str, Tensor]:
        """This process's generators; under names of its own, as every process has others."""
        states = {f"random.cpu.{self._world.rank}": torch.get_rng_state()}
        if self._world.device.type == "cuda":
            states[f"random.cuda.{self._world.rank}"] = torch.cuda.get_rng_state()
        return states

    def _set_random_state(self, states: Mapping[str, Tensor]) -> None:
        for name, state in states.items():
            if name.startswith("random.cuda"):
                torch.cuda.set_rng_state(state)
            else:
                torch.set_rng_state(state)
