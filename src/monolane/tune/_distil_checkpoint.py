"""The states of a distillation: kept every few steps and at a signal, read back to go on."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from monolane.train import write_seal
from monolane.tune._run_state import checkpoint_path, drop_after, newest_checkpoint

_STATE = "state.pt"
_KEPT = 2  # the last so many


class Keeper:
    """Keeps the state of one run in its folder; ``asked`` says whether a signal wants the end."""

    def __init__(self, run: Path, every: int, asked: Callable[[], int]) -> None:
        self._run = run
        self._every = every
        self._asked = asked

    def load(self) -> tuple[dict[str, Any] | None, dict[int, str]]:
        """Return the newest whole state, if any, and why newer ones were passed over."""
        newest, damaged = newest_checkpoint(self._run)
        drop_after(self._run, newest)
        if newest is None:
            return None, damaged
        state: dict[str, Any] = torch.load(newest / _STATE, map_location="cpu", weights_only=True)
        return state, damaged

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
        names = (path.name.rpartition("-")[2] for path in self._run.glob("checkpoint-*"))
        for old in sorted(int(name) for name in names if name.isdecimal())[:-_KEPT]:
            if old < step:
                shutil.rmtree(checkpoint_path(self._run, old), ignore_errors=True)
