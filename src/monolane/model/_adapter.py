"""Low-rank adapters: what is added to some of a model's matrices, y = W x + B (A x).

Read from a folder in PEFT's layout (_peft_adapter.py). Matrices of attention and of dense MLPs may
have one; who computes them leaves the model's own weights as they are.

Shape legend: L lanes, R rows of a lane's matrix, K its columns, r rank.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from monolane.model._config import ModelConfig
from monolane.model._peft_adapter import Update, read_peft
from monolane.model._tensors import lane_shape
from monolane.model.families import as_published
from monolane.ops import Role

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """What is added to one matrix: float32, with the adapter's scale in ``up``."""

    down: Floats  # A [L, r, K]
    up: Floats  # B [L, R, r]

    @property
    def product(self) -> Floats:
        """B A, [L, R, K]: what a merge would add to the matrix."""
        found: Floats = np.matmul(self.up, self.down)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """An adapter of one model, by role and layer of the matrices that it reaches."""

    parts: Mapping[tuple[Role, int], LowRank]

    @staticmethod
    def open(folder: Path, config: ModelConfig, *, from_gguf: bool = False) -> "Adapter":
        """Read a folder in PEFT's layout, of a model with this config.

        ``from_gguf``: the model's weights lie as a .gguf file has them, whose rows of queries and
        keys may be in another order than the adapter's. ConfigError names a field that cannot be
        honoured, CheckpointError a tensor; either says what to do.
        """
        moved = from_gguf and as_published(config).rotary.style != config.rotary.style
        parts: dict[tuple[Role, int], LowRank] = {}
        for (role, layer), update in read_peft(folder, config).items():
            if moved and role in (Role.Q, Role.K):
                update = Update(update.down, _in_pairs(update.up, config.head_dim))
            parts[role, layer] = _by_lane(update, lane_shape(config, role, layer=layer))
        return Adapter(parts)

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers."""
        return sum(part.down.nbytes + part.up.nbytes for part in self.parts.values())

    def digest(self) -> str:
        """Return a hash of its numbers and their places: what keys and values depend on."""
        found = hashlib.sha256()
        for (role, layer), part in sorted(self.parts.items()):
            found.update(f"{role.value} {layer} {part.down.shape} {part.up.shape}\n".encode())
            found.update(part.down.data)
            found.update(part.up.data)
        return found.hexdigest()

    def of_layer(self, layer: int) -> dict[Role, LowRank]:
        """Return what it adds in one layer."""
        return {role: part for (role, i), part in self.parts.items() if i == layer}


def _by_lane(update: Update, shape: tuple[int, ...]) -> LowRank:
    """Return an update of a matrix, or of a stack of lanes as PEFT has it, lanes first.

    PEFT keeps that of a stack [L, R, K] as A [L*r, K] and B [R, r*L], whose last index is the lane.
    """
    lanes, rows, columns = shape
    down = update.down.reshape(lanes, -1, columns)
    up = update.up.reshape(rows, -1, lanes).transpose(2, 0, 1)
    return LowRank(np.ascontiguousarray(down), np.ascontiguousarray(up))


def _in_pairs(rows: Floats, head_dim: int) -> Floats:
    """Order each head's rows [X, r] for pairs (0, 1), (2, 3), given for pairs (i, i + h/2)."""
    halves = rows.reshape(-1, 2, head_dim // 2, rows.shape[1])
    return halves.swapaxes(1, 2).reshape(rows.shape)
