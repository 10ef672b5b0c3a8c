"""The weights of a dense model as those of its lanes, which ``_lanes.py`` describes.

For executors and tests that read arrays by lane. The CPU's workers do not come here: each copies
the rows and columns of its own lanes from the dense matrix (csrc/ops/packed_weights.h).
"""

from dataclasses import replace
from typing import Any

from monolane.errors import ConfigError
from monolane.model._formats import find_format
from monolane.model._lanes import in_lanes, lane_cut
from monolane.model._quant_matrix import Blocks, Quantized
from monolane.model._tensors import lane_shape
from monolane.model._weights import Weights
from monolane.ops import Role


def cut_weights(dense: Weights, lanes: int) -> Weights:
    """Return a model of one lane with the config and the arrays of several: see ``in_lanes``.

    Nothing is copied but KV heads that are repeated: a lane's columns are a view with the dense
    matrix's stride. ConfigError says what does not divide, or which blocks would be cut in two.
    """
    if lanes == dense.config.num_lanes:
        return dense
    config = in_lanes(dense.config, lanes)

    def part(role: Role, array: Any) -> Any:
        """Of an array [1, R] or [1, R, X]: X may count codes or scales, too."""
        if role is Role.EMBEDDING:
            return array
        shape = lane_shape(config, role)
        if array.ndim > 2:
            shape = (*shape[:-1], -1)
        return lane_cut(dense.config, config, role).of(array[0]).reshape(shape)

    def coded(role: Role, matrix: Quantized | Blocks) -> Quantized | Blocks:
        if role is Role.EMBEDDING:
            return matrix
        columns = lane_shape(config, role)[-1]
        row = find_format(matrix.format if isinstance(matrix, Blocks) else f"int{matrix.bits}")
        block = row.super_block or row.group
        if columns % block:
            raise ConfigError(
                f"{role.value} in {row.name}: expected columns in whole blocks of {block}, got "
                f"{columns} for each of {lanes} lanes; use fewer, or a model of plain numbers"
            )
        if isinstance(matrix, Blocks):
            return replace(matrix, data=part(role, matrix.data), columns=columns)
        return Quantized(matrix.bits, part(role, matrix.codes), part(role, matrix.scales))

    return Weights(
        config,
        {role: part(role, array) for role, array in dense.outer.items()},
        tuple({role: part(role, x) for role, x in layer.items()} for layer in dense.layers),
        {(role, i): coded(role, matrix) for (role, i), matrix in dense.quantized.items()},
    )
