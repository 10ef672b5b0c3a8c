"""Tensors in another float dtype, each number rounded once."""

import numpy as np

from monolane.errors import CheckpointError
from monolane.model._safetensors import Array


def rounded(name: str, array: Array, dtype: str) -> Array:
    """Return an array in ``dtype``; CheckpointError if a finite number of it becomes infinite."""
    with np.errstate(over="ignore"):  # reported below, with the tensor's name
        result: Array = array.astype(np.dtype(dtype))
    if np.isfinite(array).all() and not np.isfinite(result).all():
        raise CheckpointError(
            f"tensor {name!r}: expected values that {dtype} can hold, got up to "
            f"{np.abs(array.astype(np.float32)).max():g}; export as bfloat16 or float32"
        )
    return result
