"""The config and the weights of a GGUF file as the files of a folder in Hub layout.

What converters did to the weights is undone, so that any reader of such folders computes the same
model: rows of queries and keys go back to the family's order, and norms lose what was added to
them. Blocks are widened, one matrix at a time.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from monolane.model._checkpoint import write_checkpoint
from monolane.model._config import ModelConfig, WeightDtype
from monolane.model._fused_tensors import join_rows, part_of_whole, untiled
from monolane.model._gguf_model import GgufModel
from monolane.model._quant_matrix import Blocks, Matrix
from monolane.model._rounding import rounded
from monolane.model._safetensors import Array, PendingTensor
from monolane.model._tensors import TensorSpec
from monolane.model._weights import Weights
from monolane.model.families import as_published, published_specs, render_config
from monolane.ops import EXPERT_ROLES, JOINED, PARTED, Kind, Role

_WHOLE = {part: whole for whole, parts in PARTED.items() for part in parts}
_TURNED = (Role.Q, Role.K, Role.Q_BIAS, Role.K_BIAS)  # whose rows are those of rotary pairs


def write_unpacked(model: GgufModel, folder: Path, dtype: WeightDtype | None = None) -> ModelConfig:
    """Write config.json and the weights of ``model`` into ``folder``; return the config.

    Without a ``dtype``, blocks become float32, which holds them exactly, and floats stay as they
    are. ConfigError or CheckpointError, before anything is written, for what no config.json of the
    family can say.
    """
    weights = Weights.of_gguf(model)
    blocks = any(isinstance(matrix, Blocks) for _, matrix in weights.coded())
    published = as_published(model.config)
    published = replace(published, dtype=dtype or ("float32" if blocks else published.dtype))
    # Read again: what follows from the dtype, such as the rounding of an embedding's scale.
    published = as_published(published)
    raw = render_config(published)
    (folder / "config.json").write_text(
        json.dumps(raw, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )
    specs = published_specs(published)
    write_checkpoint(folder, [_pending(weights, published, spec, dtype) for spec in specs])
    return published


def _pending(
    weights: Weights, published: ModelConfig, spec: TensorSpec, dtype: WeightDtype | None
) -> PendingTensor:
    roles = [spec.role] if spec.also is None else [spec.role, spec.also]
    wholes = [_WHOLE.get(role, role) for role in JOINED.get(spec.role, roles)]
    found = [_find(weights, spec, role) for role in wholes]
    stored = np.result_type(*(_dtype(each[0]) for each in found))
    if stored.kind == "i":  # a table of whole numbers
        dtype = None
    target = stored if dtype is None else np.dtype(dtype)

    def values() -> Array:
        plain = [[_plain(matrix) for matrix in each] for each in found]
        if (delta := weights.config.delta) is not None and delta.tiled:
            plain = [
                [untiled(delta, role, matrix) for matrix in each]
                for role, each in zip(wholes, plain, strict=True)
            ]
        if spec.role in _WHOLE:
            ((whole,),) = plain
            array = part_of_whole(published, spec.role, whole)
        elif spec.role in JOINED:
            array = join_rows(published, spec.role, *(matrix for (matrix,) in plain))
        else:
            array = _joined(spec, plain)
        return array if dtype is None else rounded(spec.name, array, dtype)

    return PendingTensor(
        spec.name, target, spec.shape, _maker(weights.config, published, spec, values)
    )


def _find(weights: Weights, spec: TensorSpec, role: Role) -> tuple[Matrix, ...]:
    """Return what a tensor holds of a role: one matrix, or each expert's."""
    if role in EXPERT_ROLES and spec.layer is not None:
        each = weights.experts[role, spec.layer]
        return each if spec.expert is None else (each[spec.expert],)
    return (weights.matrix(role, spec.layer),)


def _dtype(matrix: Matrix) -> np.dtype[Any]:
    return matrix.dtype if isinstance(matrix, np.ndarray) else np.dtype(np.float32)


def _plain(matrix: Matrix) -> Array:
    return matrix if isinstance(matrix, np.ndarray) else matrix.widened()


def _joined(spec: TensorSpec, each: list[list[Array]]) -> Array:
    """Return a tensor of the matrices of each of its roles, as ``TensorSpec`` says."""
    if spec.also is None and len(each[0]) == 1:
        return each[0][0]
    of_roles = [np.stack([matrix[0] for matrix in own]) for own in each]  # [E, R, K], [1, E, R]
    rows = 2 if spec.role.kind is Kind.MATRIX else 3
    if spec.halves:
        joined = np.concatenate(of_roles, axis=rows - 1)
    else:
        turns = np.stack(of_roles, axis=rows)  # one of each role in turn
        joined = turns.reshape(*turns.shape[: rows - 1], -1, *turns.shape[rows + 1 :])
    return joined.swapaxes(-1, -2) if spec.columns_first else joined


def _maker(
    stored: ModelConfig, published: ModelConfig, spec: TensorSpec, values: Callable[[], Array]
) -> Callable[[], Array]:
    moved = spec.role in _TURNED and stored.rotary.style != published.rotary.style
    offset = stored.norm_offset - published.norm_offset if spec.role.kind is Kind.NORM else 0.0

    def make() -> Array:
        array = values()
        if moved:
            array = in_halves(array.reshape(spec.shape), stored.head_dim)
        if offset:
            array = (array.astype(np.float32) + np.float32(offset)).astype(array.dtype)
        return array.reshape(spec.shape)

    return make


def in_halves(rows: Array, head_dim: int) -> Array:
    """Order each head's rows [X, ...] for pairs (i, i + h/2), given in pairs (0, 1), (2, 3), ..."""
    pairs = rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)
