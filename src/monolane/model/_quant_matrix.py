"""One quantised matrix: integer codes and the scales of their groups, and what they mean.

``Quantized`` is ours: the codes lie in the file as the kernels read them (csrc/kernels/kernels.h),
so loading is mapping. Of a group of 32 columns, int8 has a byte for each; int4 has 16 bytes, code c
(stored as c + 8) in the low half of byte c for c < 16, in the high half of byte c - 16 otherwise.
``Blocks`` is GGUF's, scales among codes: executors bring it into an order of their own.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane.errors import CheckpointError
from monolane.model._formats import FORMATS, STORED, find_format
from monolane.model._quant_config import GROUP, Quantization
from monolane.model._safetensors import Array


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """Codes int8 [.., K] or uint8 [.., K/2], and scales float16 [.., K/32]."""

    bits: int
    codes: Array
    scales: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the matrix that is meant: [.., K]."""
        return (*self.scales.shape[:-1], self.scales.shape[-1] * GROUP)

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes

    def __getitem__(self, outer: Any) -> "Quantized":
        """Return some of the rows, as NumPy indexes the axes before the last; nothing is copied."""
        return Quantized(self.bits, self.codes[outer], self.scales[outer])

    def widened(self) -> npt.NDArray[np.float32]:
        """Return codes * scales: float32 [.., K], exact, since no product has over 19 bits."""
        groups = self.codes.reshape(*self.scales.shape, -1)  # [.., K/32, 32 or 16]
        if self.bits == 4:
            groups = np.concatenate([groups & 15, groups >> 4], axis=-1).astype(np.int8) - 8
        meant = groups.astype(np.float32) * self.scales.astype(np.float32)[..., None]
        found: npt.NDArray[np.float32] = meant.reshape(self.shape)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Rows as a GGUF file holds them: blocks of codes with their scales, uint8 [.., row's bytes].

    ``format`` names a row of the table of formats, as "q4_k"; ``columns`` is K; ``factor`` is what
    all numbers are multiplied with, a float32. ConfigError where K is no multiple of the format's
    block; CheckpointError where a row has another size.
    """

    format: str
    data: Array
    columns: int
    factor: float = 1.0

    def __post_init__(self) -> None:
        row = find_format(self.format)
        if not row.in_blocks:
            known = ", ".join(x.name for x in FORMATS.values() if x.in_blocks)
            raise CheckpointError(f"format: expected one of {known}, got {self.format!r}")
        expected, got = row.row_bytes(self.columns), self.data.shape[-1]
        if self.data.dtype != np.uint8 or got != expected:
            raise CheckpointError(
                f"{self.format}: expected rows of {expected} bytes (uint8) for {self.columns} "
                f"columns, got {got} ({self.data.dtype})"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the matrix that is meant: [.., K]."""
        return (*self.data.shape[:-1], self.columns)

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks."""
        return self.data.nbytes

    def __getitem__(self, outer: Any) -> "Blocks":
        """Return some of the rows, as NumPy indexes the axes before the last; nothing is copied."""
        return replace(self, data=self.data[outer])

    def widened(self) -> npt.NDArray[np.float32]:
        """Return the numbers that are meant, float32 [.., K], as llama.cpp dequantises them.

        A ``factor`` is multiplied with last, which rounds each number once more.
        """
        from gguf import GGMLQuantizationType  # only here: the package takes 50 ms to import
        from gguf.quants import dequantize

        kind = GGMLQuantizationType[self.format.upper()]
        # A hostile file's infinite scale times a zero; MXFP4's largest scales.
        with np.errstate(invalid="ignore", over="ignore"):
            found: npt.NDArray[np.float32] = dequantize(np.ascontiguousarray(self.data), kind)
            if self.factor != 1.0:
                found *= np.float32(self.factor)
        return found.reshape(self.shape)


# However it is stored: plain numbers, codes of ours, or blocks.
Matrix = Array | Quantized | Blocks


def quantize_matrix(matrix: Array, quantization: Quantization) -> Quantized:
    """Quantise a float matrix [.., K], K a multiple of 32.

    CheckpointError where a group has no float16 scale: NaN, infinity, or a value whose size is over
    65504 times the largest code.
    """
    from monolane._core import kernels  # only here: reading a model needs no native code

    *outer, columns = matrix.shape
    rows = np.ascontiguousarray(matrix).reshape(-1, columns)
    try:
        codes, scales = kernels.quantize(
            find_format(quantization.dtype).short, STORED[rows.dtype].short, rows.view(np.uint8)
        )
    except ValueError as error:
        raise CheckpointError(str(error)) from None
    stored = codes.view(np.int8) if quantization.bits == 8 else codes
    return Quantized(
        quantization.bits,
        stored.reshape(*outer, -1),
        scales.view(np.float16).reshape(*outer, -1),
    )
