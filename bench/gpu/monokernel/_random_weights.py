"""Weights of a fixed seed, the same for the monokernel, for torch and for NumPy.

One block of random bfloat16 numbers in a file; every tensor is a contiguous part of it, beginning
where a hash of its name says. So a model of 4.4 GB costs 0.25 GB of disk and a second of time, each
tensor's rows are distinct, and nothing but addresses has to be agreed on.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from monolane.model import (
    ModelConfig,
    Role,
    TensorSpec,
    Weights,
    lane_shape,
    layer_roles,
    tensor_specs,
)

FILE = "weights.npy"
_NORMS = (Role.ATTENTION_NORM, Role.MLP_NORM, Role.FINAL_NORM)
_STEP = 64  # elements: tensors begin at multiples of 128 bytes
_PLACES = 1 << 18  # where one may begin: over 16 million elements

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Part:
    """A tensor as a part of the block: value = scale * block[begin : begin + size] + shift."""

    begin: int
    shape: tuple[int, ...]
    scale: float  # a power of two, so that bfloat16 holds the product exactly
    shift: float = 0.0


def make_block(config: ModelConfig, folder: Path) -> None:
    """Write the block for a model, unless the folder has it: a rehearsal's is another."""
    path = folder / FILE
    longest = max(spec.size for spec in tensor_specs(config)) + _STEP * _places(config)
    if path.exists() and read_block(folder).size == longest:
        return
    rng = np.random.default_rng(20)
    # Sums over D inputs of size 1 have size 1, and so have logits.
    values = rng.standard_normal(longest, np.float32) * config.hidden_size**-0.5
    aside = folder / f".{FILE}.part"
    with aside.open("wb") as file:
        np.save(file, values.astype(ml_dtypes.bfloat16).view(np.uint16))
    aside.rename(path)


def read_block(folder: Path) -> Array:
    """The block, mapped: bit patterns of bfloat16."""
    found: Array = np.load(folder / FILE, mmap_mode="r")
    return found


def part(config: ModelConfig, role: Role, layer: int | None) -> Part:
    """Where a tensor lies."""
    place = zlib.crc32(f"{role.value} {layer}".encode()) % _places(config)
    shape = lane_shape(config, role)
    if role in _NORMS:
        # About a tenth around 1: a lane that took another lane's scale would be seen.
        return Part(
            _STEP * place, shape, 2.0 ** round(math.log2(0.12 * config.hidden_size**0.5)), 1
        )
    # Queries of size 2 make attention look at tens of keys instead of all alike: a key that is
    # missed, or read twice, is seen. Embeddings of size 1 are as large as what layers add to them.
    root = 2.0 ** round(math.log2(config.hidden_size**0.5))
    scale = {Role.Q: 2.0, Role.EMBEDDING: root}.get(role, 1.0)
    return Part(_STEP * place, shape, scale)


def numpy_tensor(block: Array, where: Part) -> Array:
    """A tensor in bfloat16, viewed where it is stored as it is."""
    size = math.prod(where.shape)
    flat = block[where.begin : where.begin + size].view(ml_dtypes.bfloat16)
    if (where.scale, where.shift) != (1.0, 0.0):
        wide = flat.astype(np.float32) * np.float32(where.scale) + np.float32(where.shift)
        flat = wide.astype(ml_dtypes.bfloat16)
    found: Array = flat.reshape(where.shape)
    return found


def random_weights(config: ModelConfig, folder: Path) -> Weights:
    """The model for monolane's executors."""
    block = read_block(folder)

    def tensor(role: Role, layer: int | None) -> Array:
        return numpy_tensor(block, part(config, role, layer))

    return _weights(config, tensor)


def _weights(config: ModelConfig, tensor: Callable[[Role, int | None], Array]) -> Weights:
    outer = {role: tensor(role, None) for role in (Role.EMBEDDING, Role.FINAL_NORM, Role.HEAD)}
    layers = tuple(
        {role: tensor(role, i) for role in layer_roles(config)} for i in range(config.num_layers)
    )
    return Weights(config, outer, layers)


def wide_weights(config: ModelConfig, folder: Path) -> Weights:
    """The same values in float32, still as parts of one block: a fifth of the memory of copies."""
    block = read_block(folder).view(ml_dtypes.bfloat16).astype(np.float32)

    def tensor(role: Role, layer: int | None) -> Array:
        where = part(config, role, layer)
        flat = block[where.begin : where.begin + math.prod(where.shape)]
        if (where.scale, where.shift) != (1.0, 0.0):
            scaled = flat * np.float32(where.scale) + np.float32(where.shift)
            flat = scaled.astype(ml_dtypes.bfloat16).astype(np.float32)
        found: Array = flat.reshape(where.shape)
        return found

    return _weights(config, tensor)


def block_digest(folder: Path) -> int:
    """A checksum of the block: whether weights made elsewhere are the same."""
    return zlib.crc32(read_block(folder).data)


def named_parts(config: ModelConfig) -> list[tuple[TensorSpec, Part]]:
    """Every tensor by its name in a checkpoint, which is also that in `monolane.hf`."""
    return [(spec, part(config, spec.role, spec.layer)) for spec in tensor_specs(config)]


def _places(config: ModelConfig) -> int:
    return min(_PLACES, config.vocab_size * config.hidden_size // _STEP)
