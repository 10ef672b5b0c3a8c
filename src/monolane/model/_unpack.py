"""The config and the weights of a GGUF file as the files of a folder in Hub layout.

What converters did to the weights is undone, so that any reader of such folders computes the same
model: rows of queries and keys go back to the family's order, and norms lose what was added to
them. Blocks are widened, one matrix at a time.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from monolane.errors import ConfigError
from monolane.model._checkpoint import write_checkpoint
from monolane.model._config import ModelConfig, WeightDtype
from monolane.model._gguf_model import GgufModel
from monolane.model._quantized import Blocks
from monolane.model._rounding import rounded
from monolane.model._safetensors import Array, PendingTensor
from monolane.model._tensors import NORMS, Role, TensorSpec
from monolane.model._weights import Matrix, Weights
from monolane.model.families import as_published, render_config, tensor_specs

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
    specs = tensor_specs(published)
    if any(spec.also or spec.columns_first for spec in specs):
        raise ConfigError(
            f"{model.path}: expected a family whose experts have matrices of their own, got "
            f"{published.family}, whose folders hold them merged; run the .gguf file as it is"
        )
    write_checkpoint(folder, [_pending(weights, published, spec, dtype) for spec in specs])
    return published


def _pending(
    weights: Weights, published: ModelConfig, spec: TensorSpec, dtype: WeightDtype | None
) -> PendingTensor:
    found = _find(weights, spec)
    stored = found.dtype if isinstance(found, np.ndarray) else np.dtype(np.float32)
    target = stored if dtype is None else np.dtype(dtype)

    def values() -> Array:
        array = found if isinstance(found, np.ndarray) else found.widened()
        return array if dtype is None else rounded(spec.name, array, dtype)

    return PendingTensor(
        spec.name, target, spec.shape, _maker(weights.config, published, spec, values)
    )


def _find(weights: Weights, spec: TensorSpec) -> Matrix:
    if spec.expert is not None and spec.layer is not None:
        return weights.experts[spec.role, spec.layer][spec.expert]
    coded = weights.quantized.get((spec.role, spec.layer))
    if coded is not None:
        return coded
    return (weights.outer if spec.layer is None else weights.layers[spec.layer])[spec.role]


def _maker(
    stored: ModelConfig, published: ModelConfig, spec: TensorSpec, values: Callable[[], Array]
) -> Callable[[], Array]:
    moved = spec.role in _TURNED and stored.rotary.style != published.rotary.style
    offset = stored.norm_offset - published.norm_offset if spec.role in NORMS else 0.0

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
