"""The checkpoints of a run: written in the background by all processes, whole or not at all.

    <run>/checkpoints/step-00001200/
        progress.json             where the run is, with its own checksum; written first
        __<rank>_<n>.distcp       each process's shares of weights and optimizer state
        .metadata                 written by the first process when all shares are there
        sums-<rank>-of-<n>.json   each process's seal (``_checksums.py``): with the last one it
        counts

The format is PyTorch's distributed checkpoint (DCP): a run may go on with another number of
processes, which then read other shares of the same tensors. A run goes on from its newest
checkpoint whose every file is as it was written; damaged ones are passed over, and told.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from monolane._toml import read_table
from monolane.errors import CheckpointError
from monolane.train._checksums import find_damage, is_sealed, write_durably, write_seal
from monolane.train._process_group import World

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
        fields = asdict(self)
        table = {"version": _VERSION, "sum": _sum(fields), **fields}
        write_durably(folder / PROGRESS, json.dumps(table, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Progress":
        """Read it back; CheckpointError where it is damaged or of another version."""
        path = folder / PROGRESS
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            version, expected = value.pop("version"), value.pop("sum", None)
            if version == _VERSION and _sum(value) != expected:
                raise ValueError("what it says is not what was written")
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
    """Return the steps of a run's whole checkpoints, in order; their files are not read."""
    folders = {step: checkpoint_folder(run, step) for step in _steps(run)}
    return [s for s, folder in folders.items() if (folder / _WHOLE).is_file() and is_sealed(folder)]


def named_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint that a folder is, or the newest of a run; None where it is neither.

    CheckpointError where it is damaged: the caller named it, so no other is put in its place.
    """
    among = [folder, *(checkpoint_folder(folder, step) for step in reversed(_steps(folder)))]
    found = next(filter(is_sealed, among), None)
    if found is not None:
        check_checkpoint(found, "name the one before it, or another run")
    return found


def check_checkpoint(folder: Path, hint: str) -> None:
    """Raise CheckpointError, with ``hint``, unless every file is as it was written."""
    if (fault := checkpoint_fault(folder)) is not None:
        raise CheckpointError(f"{folder}: expected a whole checkpoint, but {fault}; {hint}")


def checkpoint_fault(folder: Path) -> str | None:
    """Return what is wrong with a checkpoint, in a few words, or None; reads all of its files."""
    if not is_sealed(folder):
        return "it was not written to its end"
    if (fault := find_damage(folder)) is not None:
        return fault
    try:
        table = json.loads((folder / PROGRESS).read_text(encoding="utf-8"))
        if table.pop("version") != _VERSION:
            return None  # of another version, and not for us to judge: Progress.read says so
        if table.pop("sum", None) == _sum(table):
            return None
    except OSError as error:
        return f"{PROGRESS}: {error.strerror}"
    except (ValueError, KeyError, AttributeError):
        pass
    return f"{PROGRESS} is not what was written (SHA-256)"


def _steps(run: Path) -> list[int]:
    """Return the steps of all that lies among a run's checkpoints, whole or not, in order."""
    names = (path.name.removeprefix("step-") for path in (run / FOLDER).glob("step-*"))
    return sorted(int(name) for name in names if name.isdecimal())


def _sum(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


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
        self._sealing = ThreadPoolExecutor(1, thread_name_prefix="monolane-seal")
        self._damaged: dict[int, str] = {}  # checkpoints that were passed over, and why

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
        self._pending = self._sealing.submit(self._seal, pending, folder)
        self._pending_step = progress.step

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
        self._world.wait()  # now every process has sealed its share
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
        """Return the step of the newest whole checkpoint, or the newest before step ``before``.

        Every byte of it is read. :meth:`damaged` tells what was passed over; CheckpointError where
        all that was ever finished is damaged.
        """
        found: int | None = None
        lost: list[int] = []
        if self._world.is_first:
            found = self._sound([s for s in _steps(self._run) if before is None or s < before])
            lost = [s for s in self._damaged if is_sealed(checkpoint_folder(self._run, s))]
        found, lost = self._world.tell((found, lost))
        if found is None and lost and before is None:
            raise CheckpointError(
                f"{self._run / FOLDER}: expected a whole checkpoint, but those after "
                f"{', '.join(map(str, sorted(lost)))} steps are damaged; put back a copy, or "
                "remove the run's folder to start anew"
            )
        return found

    def _sound(self, steps: list[int]) -> int | None:
        """Return the last of these steps whose checkpoint is whole; note what is passed over."""
        for step in reversed(steps):
            folder = checkpoint_folder(self._run, step)
            fault = checkpoint_fault(folder)
            if fault is None:
                return step
            if is_sealed(folder) or (folder / _WHOLE).is_file():  # more than a kill leaves
                self._damaged[step] = fault
        return None

    def damaged(self) -> dict[int, str]:
        """Return which checkpoints were passed over since the last call, and why."""
        damaged, self._damaged = self._damaged, {}
        return damaged

    def drop_after(self, step: int) -> None:
        """Remove checkpoints of later steps, which the run will do again, and unfinished ones."""
        if self._world.is_first:
            whole = set(checkpoint_steps(self._run))
            for number in _steps(self._run):
                if number > step or number not in whole:
                    self._remove(number)
        self._world.wait()

    def _seal(self, pending: Future[Any], folder: Path) -> None:
        """Wait, in a thread, until this process's share is written; then seal it."""
        pending.result()
        files = list(folder.glob(f"__{self._world.rank}_*.distcp"))
        if self._world.is_first:
            files.append(folder / _WHOLE)
        write_seal(folder, files, self._world.rank, self._world.size)

    def _take(self) -> None:
        assert self._pending is not None
        pending, self._pending = self._pending, None
        try:
            pending.result()
        except (CheckpointException, OSError) as error:
            raise CheckpointError(
                f"{checkpoint_folder(self._run, self._pending_step)}: cannot be written: "
                f"{_cause(error)}; make room, and go on with --resume from the one before it"
            ) from error
        self._finished.append(self._pending_step)

    def _remove(self, step: int) -> None:
        folder = checkpoint_folder(self._run, step)
        for seal in (*folder.glob("sums-*.json"), folder / _WHOLE):  # first: half must not count
            seal.unlink(missing_ok=True)
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


def _cause(error: BaseException) -> str:
    """Return why a checkpoint could not be written: the first process's own words, in a line."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    text = getattr(error, "strerror", None) or f"{error}".strip().split("\n")[0]
    return text or type(error).__name__
