"""What a post-training run keeps beside its output, in ``<out>.run``, so that it can go on.

run.json                what decides the run: a resumed one must begin with the same
checkpoint-<step>/      a state, with its seal (``monolane.train``): whole, or passed over
"""

import json
import math
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from monolane.errors import CheckpointError, TrainingError
from monolane.train import (
    disk_errors_told,
    find_damage,
    held,
    is_sealed,
    sum_file,
    write_seal,
)

_RUN = "run.json"
_PREFIX = "checkpoint-"
_STATE = "state.pt"
_KEPT = 2  # of a Keeper's checkpoints: the last so many
PATIENCE = 4  # gradients in a row that are not finite; then the run has diverged


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that this process alone does."""

    folder: Path
    newest: Path | None  # the checkpoint that it goes on from
    damaged: dict[int, str]  # checkpoints that were passed over, and why

    def state(self) -> dict[str, Any] | None:
        """Read what a Keeper kept in the newest checkpoint; None where there is none."""
        if self.newest is None:
            return None
        path = self.newest / _STATE
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return state

    @property
    def told(self) -> list[str]:
        """A line about each checkpoint that was passed over."""
        found = self.damaged.items()
        return [f"the checkpoint of step {step} is left out: {fault}" for step, fault in found]


@contextmanager
def opened_run(
    out: Path, facts: Mapping[str, Any], resume: bool, newer: Collection[str] = ()
) -> Iterator[OpenRun]:
    """Begin the run of ``out``, or hold a resumed one to the ``facts`` that it began with.

    ``newer`` are facts that older runs did not keep: such a run is not asked for them. In here a
    disk that refuses is told. Checkpoints behind the newest whole one are removed: their steps will
    be done again.
    """
    run = out.with_name(f"{out.name}.run")
    with disk_errors_told(run), held(run):
        _check_facts(run, json.loads(json.dumps(facts)), resume, newer)
        newest, damaged = newest_checkpoint(run) if resume else (None, {})
        done = 0 if newest is None else int(newest.name.removeprefix(_PREFIX))
        for step in _steps(run):
            if step > done:
                shutil.rmtree(checkpoint_path(run, step), ignore_errors=True)
        yield OpenRun(run, newest, damaged)


def _check_facts(run: Path, facts: Mapping[str, Any], resume: bool, newer: Collection[str]) -> None:
    path = run / _RUN
    if not resume:
        if path.exists():
            raise CheckpointError(
                f"{run}: expected no run there, found one; continue it with --resume, or remove "
                "the folder to start anew"
            )
        run.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        return
    if not path.is_file():
        raise CheckpointError(
            f"{run}: expected a run to resume, found none; start without --resume"
        )
    try:
        kept = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            f"{path}: expected what the run began with, got {error}; remove the folder to start "
            "anew"
        ) from None
    for name, value in facts.items():
        if kept.get(name) != value and (name in kept or name not in newer):
            raise CheckpointError(
                f"{path}: {name}: expected what the run began with, got something else; resume "
                "with the same model, data and recipe, or start anew"
            )


def weights_digest(files: Iterable[Path]) -> list[list[Any]]:
    """Return name, size and SHA-256 of each weight file: a tuned copy has the names and sizes."""
    return [[path.name, path.stat().st_size, sum_file(path)] for path in sorted(files)]


def newest_checkpoint(run: Path) -> tuple[Path | None, dict[int, str]]:
    """Return the newest checkpoint that is as it was written, and why newer ones were passed over.

    None where none was ever finished; CheckpointError where all that were are damaged.
    """
    damaged: dict[int, str] = {}
    for step in reversed(_steps(run)):
        folder = checkpoint_path(run, step)
        if not is_sealed(folder):  # killed while it was written
            continue
        fault = find_damage(folder)
        if fault is None:
            return folder, damaged
        damaged[step] = fault
    if damaged:
        raise CheckpointError(
            f"{run}: expected a whole checkpoint, but those after "
            f"{', '.join(map(str, sorted(damaged)))} steps are damaged; put back a copy, or remove "
            "the folder to start anew"
        )
    return None, damaged


def checkpoint_path(run: Path, step: int) -> Path:
    """Return where the checkpoint after ``step`` steps lies."""
    return run / f"{_PREFIX}{step}"


def _steps(run: Path) -> list[int]:
    """Return the steps of a run's checkpoints, whole or not, in order."""
    names = (path.name.removeprefix(_PREFIX) for path in run.glob(f"{_PREFIX}*"))
    return sorted(int(name) for name in names if name.isdecimal())


class Keeper:
    """Keeps the state of one run in its folder; ``asked`` says whether a signal wants the end."""

    def __init__(self, run: Path, every: int, asked: Callable[[], int]) -> None:
        self._run = run
        self._every = every
        self._asked = asked

    def after(self, step: int, last: bool, state: Callable[[], dict[str, Any]]) -> None:
        """Keep the state after ``step`` steps if it is due; KeyboardInterrupt if asked to stop."""
        stop = bool(self._asked())
        if stop or last or step % self._every == 0:
            self._save(step, state())
        if stop:
            raise KeyboardInterrupt

    def _save(self, step: int, state: dict[str, Any]) -> None:
        folder = checkpoint_path(self._run, step)
        shutil.rmtree(folder, ignore_errors=True)  # of a run that died while it wrote
        folder.mkdir()
        with (folder / _STATE).open("wb") as file:  # ours: a full disk is then an OSError
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        write_seal(folder, [folder / _STATE])
        for old in _steps(self._run)[:-_KEPT]:
            if old < step:
                shutil.rmtree(checkpoint_path(self._run, old), ignore_errors=True)


class Gradients:
    """Judges the gradients of a run: one that is not finite is dropped, many in a row end it."""

    def __init__(self) -> None:
        self._dropped = 0  # in a row

    def usable(self, parameters: Iterable[torch.nn.Parameter], step: int) -> bool:
        """Return whether all gradients are finite; where not, drop them: nothing is updated.

        TrainingError after several in a row. ``step`` is counted from 1.
        """
        trained = [parameter for parameter in parameters if parameter.grad is not None]
        norm = float(torch.nn.utils.get_total_norm([p.grad for p in trained if p.grad is not None]))
        if math.isfinite(norm):
            self._dropped = 0
            return True
        for parameter in trained:
            parameter.grad = None
        self._dropped += 1
        if self._dropped >= PATIENCE:
            raise TrainingError(
                f"step {step}: the gradient is not finite, {self._dropped} times in a row: the run "
                "has diverged, and nothing is written; lower the learning rate, look at the data, "
                "and go on from the last checkpoint or start anew"
            )
        return False


def check_finite(model: torch.nn.Module) -> None:
    """Raise TrainingError where a weight is NaN or infinite: such a model is not written."""
    for name, weight in model.state_dict().items():
        if not bool(torch.isfinite(weight).all()):
            raise TrainingError(
                f"{name}: expected finite weights, found NaN or infinity after training; nothing "
                "is written: lower the learning rate, and start anew"
            )
