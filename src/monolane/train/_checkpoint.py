"""The state of a run on disk: what a killed run needs to continue bit for bit.

One file, replaced in one step, so a kill during the write leaves the one before. It is read with
``weights_only``: tensors and plain values, no code.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from monolane.errors import CheckpointError
from monolane.train._recipe import DemoRecipe

_VERSION = 1
_NAME = "checkpoint.pt"


@dataclass(frozen=True)
class Checkpoint:
    """A run after ``step`` steps of ``steps``."""

    recipe: DemoRecipe
    corpus: str  # digest
    precision: str
    steps: int
    step: int
    seconds: float  # spent in steps so far
    model: dict[str, Any]
    optimiser: list[dict[str, Any]]

    def save(self, folder: Path) -> None:
        """Write the checkpoint of ``folder``, replacing the one before in one step."""
        folder.mkdir(parents=True, exist_ok=True)
        values = {**self.__dict__, "recipe": self.recipe.to_dict(), "version": _VERSION}
        unfinished = folder / f"{_NAME}.tmp"
        with unfinished.open("wb") as file:
            torch.save(values, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(folder / _NAME)

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether ``folder`` holds a checkpoint."""
        return (folder / _NAME).is_file()

    @classmethod
    def load(cls, folder: Path) -> "Checkpoint":
        """Read the checkpoint of ``folder``."""
        path = folder / _NAME
        if not path.is_file():
            raise CheckpointError(
                f"expected a checkpoint at {path}, found none; start without --resume"
            )
        try:
            values = torch.load(path, map_location="cpu", weights_only=True)
            version = values.pop("version")
        except Exception as error:
            # torch raises many kinds, and its text advises to load code: not repeated here.
            raise CheckpointError(
                f"{path}: expected a checkpoint of a training run, could not read it "
                f"({type(error).__name__}); start without --resume"
            ) from error
        if version != _VERSION:
            raise CheckpointError(
                f"{path}: expected format {_VERSION}, got {version}; start without --resume"
            )
        return cls(**{**values, "recipe": DemoRecipe.from_dict(values["recipe"])})
