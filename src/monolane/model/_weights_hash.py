"""What tells one model's weights from another's: a hash of every byte that is read of them."""

import hashlib

import numpy as np

from monolane.model._quant_matrix import Blocks, Matrix, Quantized
from monolane.model._safetensors import Array
from monolane.model._weights import Weights
from monolane.ops import Role


def digest(weights: Weights) -> str:
    """Return SHA-256 over the config and all weights; it reads them all, 1 to 2 GB/s."""
    found = hashlib.sha256(repr(weights.config).encode())

    def add(role: Role, layer: int | None, *arrays: Array) -> None:
        for array in arrays:
            found.update(f"\n{role.name} {layer} {array.dtype} {array.shape}\n".encode())
            found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    for index, layer in ((None, weights.outer), *enumerate(weights.layers)):
        for role in sorted(layer, key=lambda role: role.name):
            add(role, index, layer[role])
    matrices: list[tuple[Role, int | None, Matrix]] = [
        (role, index, matrix) for (role, index), matrix in weights.quantized.items()
    ]
    matrices += [(role, i, matrix) for (role, i), x in weights.experts.items() for matrix in x]
    for role, index, matrix in matrices:
        if isinstance(matrix, Blocks):
            add(role, index, matrix.data)
        elif isinstance(matrix, Quantized):
            add(role, index, matrix.codes, matrix.scales)
        else:
            add(role, index, matrix)
    return found.hexdigest()
