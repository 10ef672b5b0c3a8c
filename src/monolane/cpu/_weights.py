"""Hands the weights of a model to the core: in place where the format fits, converted if not."""

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane._core import WeightTable
from monolane.cpu._formats import NUMPY, STORED, Arithmetic, Format
from monolane.errors import BackendError, CheckpointError
from monolane.model import (
    ModelConfig,
    Quantization,
    Quantized,
    Role,
    Weights,
    quantize_matrix,
)

ROLES = tuple(Role)
GROUP = Quantization(8).group_size
_FREQUENCIES = -1  # no tensor of the checkpoint: computed from the config
_VECTORS = frozenset(
    (
        Role.ATTENTION_NORM,
        Role.MLP_NORM,
        Role.FINAL_NORM,
        Role.Q_BIAS,
        Role.K_BIAS,
        Role.V_BIAS,
    )
)

Array = npt.NDArray[Any]


def weight_table(weights: Weights, arithmetic: Arithmetic) -> WeightTable:
    """Return the table of a model's weights; BackendError if a format cannot hold a matrix."""
    config = weights.config
    table = WeightTable(config.num_layers)
    for role, array in weights.outer.items():
        _set(table, role, 0, array, arithmetic)
    for i, layer in enumerate(weights.layers):
        for role, array in layer.items():
            _set(table, role, i, array, arithmetic)
    for (role, place), matrix in weights.quantized.items():
        _set_quantized(table, role, place or 0, matrix)
    table.set_vector(_FREQUENCIES, 0, config.rotary.frequencies(config.head_dim))
    return table


def _set(table: WeightTable, role: Role, layer: int, array: Array, arithmetic: Arithmetic) -> None:
    index = ROLES.index(role)
    if role in _VECTORS:
        table.set_vector(index, layer, np.ascontiguousarray(array, np.float32).reshape(-1))
        return
    matrix = array.reshape(-1, array.shape[-1])  # lanes one below the other
    rows, columns = matrix.shape
    wanted = arithmetic.weights
    # Embedding rows are looked up, not multiplied: one row a token, whatever its format.
    if role is Role.EMBEDDING or wanted is None or NUMPY.get(wanted) == matrix.dtype:
        table.set_matrix(index, layer, _bytes(matrix), None, rows, columns, STORED[matrix.dtype])
    elif wanted in NUMPY:
        converted = matrix.astype(NUMPY[wanted])
        table.set_matrix(index, layer, _bytes(converted), None, rows, columns, wanted)
    else:
        _set_quantized(table, role, layer, _quantize(role, matrix, wanted))


def _set_quantized(table: WeightTable, role: Role, layer: int, matrix: Quantized) -> None:
    """Hand over codes and scales as they lie in memory: mapped, if they came from a file."""
    *outer, columns = matrix.shape
    form = Format.I8 if matrix.bits == 8 else Format.I4
    codes, scales = _bytes(matrix.codes), _bytes(matrix.scales)
    table.set_matrix(ROLES.index(role), layer, codes, scales, prod(outer), columns, form)


def _quantize(role: Role, matrix: Array, wanted: Format) -> Quantized:
    if matrix.shape[1] % GROUP:
        raise BackendError(
            f"dtype: {wanted.name.lower()} needs rows of a multiple of {GROUP} columns, got "
            f"{matrix.shape[1]} in {role.value}; use bfloat16 or float32 for this model"
        )
    try:
        return quantize_matrix(matrix, Quantization(8 if wanted is Format.I8 else 4))
    except CheckpointError as error:
        raise CheckpointError(f"{role.value}: {error}") from None


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def check_config(config: ModelConfig) -> None:
    """Refuse what the kernels do not hold."""
    if config.head_dim > 1024:
        raise BackendError(f"head_dim: the CPU backend holds at most 1024, got {config.head_dim}")
