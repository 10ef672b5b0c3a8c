"""The tensors of a folder that holds a drafter, each checked when it is read."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane.errors import CheckpointError, ConfigError
from monolane.model._checkpoint import Checkpoint
from monolane.model._safetensors import SafetensorsFile

_CONFIG = "config.json"
_PLAIN = ("bfloat16", "float16", "float32")
_GROUP = 32  # columns that share a scale in the int8 products: every width is a multiple

Array = npt.NDArray[Any]


class DrafterTensors:
    """What a folder holds, ``what`` it is in messages."""

    def __init__(self, folder: Path, what: str, name: str = "") -> None:
        """Map the folder's weights, or its file of a ``name`` if it has one; CheckpointError."""
        self._folder, self._what = folder, what
        if name and (folder / name).is_file():
            file = SafetensorsFile(folder / name)
            self._checkpoint = Checkpoint(folder, dict.fromkeys(file, file))
        else:
            self._checkpoint = Checkpoint.open(folder)
        self.mapped = self._checkpoint.files
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        """Whether there is one of this name."""
        return name in self._checkpoint

    @property
    def names(self) -> list[str]:
        """Return all names, in order."""
        return sorted(self._checkpoint)

    def floats(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return a tensor of floats; CheckpointError if it is not there, or another."""
        array = self._array(name)
        if array.shape != shape or array.dtype.name not in _PLAIN:
            raise self.fault(name, f"{' or '.join(_PLAIN)} {list(shape)}, as {_CONFIG} has it")
        return array

    def grouped(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return the same of one that is multiplied in int8; ConfigError if groups do not fit."""
        array = self.floats(name, shape)
        if len(shape) == 2 and shape[1] % _GROUP:
            raise ConfigError(
                f"{self._folder}: {name}: expected columns in multiples of {_GROUP}, in which the "
                f"products group them, got {shape[1]}"
            )
        return array

    def integers(self, name: str, count: int) -> Array:
        """Return a list of integers; CheckpointError if it is not there, or another."""
        array = self._array(name)
        if array.shape != (count,) or array.dtype.kind != "i":
            raise self.fault(name, f"integers [{count}]")
        return array

    def ids(self, name: str, ids: Array, vocab: int) -> npt.NDArray[np.int32]:
        """Return ids that a tensor says, if they are of a vocabulary, each once; else raise."""
        if len(np.unique(ids)) != len(ids) or ids.min() < 0 or ids.max() >= vocab:
            raise CheckpointError(
                f"{self._folder}: {name}: expected ids from 0 to {vocab - 1}, each once, got "
                f"{ids.min()} to {ids.max()}"
            )
        return ids.astype(np.int32)

    def refuse_others(self, allowed: tuple[str, ...] = ()) -> None:
        """CheckpointError if there are tensors that were not read, but for some."""
        if others := sorted(set(self._checkpoint) - self._read - set(allowed)):
            raise CheckpointError(
                f"{self._folder}: expected the tensors of {self._what}, got {others[0]}, too"
            )

    def fault(self, name: str, expected: str) -> CheckpointError:
        """Return an error that says what was expected of a tensor, and what it is."""
        array = self._checkpoint[name]
        return CheckpointError(
            f"{self._folder}: {name}: expected {expected}, got {array.dtype.name} "
            f"{list(array.shape)}"
        )

    def _array(self, name: str) -> Array:
        if name not in self._checkpoint:
            raise CheckpointError(
                f"{self._folder}: {name}: expected it, got {', '.join(self._checkpoint):.200}"
            )
        self._read.add(name)
        return self._checkpoint[name]
