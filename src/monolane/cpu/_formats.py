"""What a dtype means on a CPU: how weights are stored, and the type of the activations."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np

from monolane.errors import BackendError


class Format(IntEnum):
    """Storage of a matrix or of the KV cache; the numbers are those of csrc/kernels.h."""

    F32 = 0
    BF16 = 1
    F16 = 2
    I8 = 3
    I4 = 4

    @property
    def bytes(self) -> int:
        """Size of one number; ValueError for codes, which share scales."""
        if self in (Format.I8, Format.I4):
            raise ValueError(f"expected a float format, got {self.name}")
        return 4 if self is Format.F32 else 2


class Activation(IntEnum):
    """Type of the activations of a product; the numbers are those of csrc/kernels.h."""

    F32 = 0
    BF16 = 1
    I8 = 2


STORED: dict[np.dtype[Any], Format] = {
    np.dtype(np.float32): Format.F32,
    np.dtype(ml_dtypes.bfloat16): Format.BF16,
    np.dtype(np.float16): Format.F16,
}


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How a model is computed. ``weights`` None: as the checkpoint stores them, without a copy."""

    name: str
    weights: Format | None
    activation: Activation
    kv: Format


_ARITHMETICS = {
    # Exact to float32: 16-bit weights are widened as they are read.
    "float32": Arithmetic("float32", None, Activation.F32, Format.F32),
    "bfloat16": Arithmetic("bfloat16", Format.BF16, Activation.BF16, Format.BF16),
    "float16": Arithmetic("float16", Format.F16, Activation.F32, Format.F16),
    "int8": Arithmetic("int8", Format.I8, Activation.I8, Format.BF16),
    "int4": Arithmetic("int4", Format.I4, Activation.I8, Format.BF16),
}
DTYPES = ("auto", *_ARITHMETICS)
QUANTIZED = {name: a.weights for name, a in _ARITHMETICS.items() if a.activation is Activation.I8}


def find_arithmetic(dtype: str, stored: str) -> Arithmetic:
    """Return what a dtype means; "auto" is the dtype in which the model's matrices are stored."""
    name = stored if dtype == "auto" else dtype
    if name == "float8":
        raise BackendError(
            f"dtype: float8 is for GPUs: expected backend='cuda', or one of {', '.join(DTYPES)} "
            "on the cpu backend, got 'float8'; int8 is as small"
        )
    if name not in _ARITHMETICS:
        raise BackendError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    if stored in QUANTIZED and name != stored:
        raise BackendError(
            f"dtype: expected auto or {stored}, in which this model's matrices are stored, got "
            f"{dtype!r}; load the unquantised model for that"
        )
    return _ARITHMETICS[name]
