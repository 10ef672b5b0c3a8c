"""Folders whose matrices are 8-bit floats with scales of blocks, read as floats of the model.

A matrix NAME [R, K] is there as E4M3 codes (sign, four bits of exponent, three of mantissa; no
infinity, and 0x7f and 0xff are no number), NAME_scale_inv beside it has a scale for each block of,
mostly, 128 rows by 128 columns; the last ones are cut off. A weight is code * scale, computed in
float32 and rounded to the dtype that config.json names: what Transformers makes of it, bit for bit.
Matrices that were left as floats are there without scales.

Ministral 3 and Mistral 4 have one scale for a whole matrix, and beside it the scale by which their
activations were rounded, which is not read: how activations are rounded is the executor's.
DeepSeek-V4's scales are powers of two (E8M0), in "scale" in the place of a name's "weight"; its
experts are 4-bit floats (E2M1), two a byte, with a scale for each 32 of a row.

Codes are widened a few rows at a time, so that the work needs some megabytes beside the result.

Sources: config.json and inference/kernel.py (``weight_dequant``) of DeepSeek-V3;
integrations/finegrained_fp8.py of github.com/huggingface/transformers.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane.errors import CheckpointError
from monolane.model._fields import Fields, read_json_object
from monolane.model._safetensors import DTYPE_NAMES, DTYPES, Array
from monolane.ops import MAX_SIZE

METHOD = "fp8"  # as quant_method spells it
CODES = DTYPES["F8_E4M3"]
# What every code means, float32 [256].
MEANING: npt.NDArray[np.float32] = np.arange(256, dtype=np.uint8).view(CODES).astype(np.float32)
LARGEST = 448.0  # of the codes' numbers
CHUNK = 1 << 20  # codes that are widened at a time

_SCALES, _ACTIVATIONS = "_scale_inv", "activation_scale"
_FLOATS = ("F32", "BF16", "F16", "F8_E8M0")
# Two 4-bit floats a byte, the one with the lower bits first, and what their codes mean.
PAIRS = DTYPES["I8"]
_HALVES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_HALVES = np.concatenate([_HALVES, -_HALVES])
_SHARED = 32  # of a row that share a scale
# Largest number of each dtype that weights may have.
_MOST = {
    "bfloat16": (2 - 2.0**-7) * 2.0**127,
    "float16": 65504.0,
    "float32": (2 - 2.0**-23) * 2.0**127,
}


@dataclass(frozen=True, slots=True)
class Float8:
    """How a folder's 8-bit floats become others: ``block`` rows and columns share a scale.

    None: all of a matrix do.
    """

    block: tuple[int, int] | None
    dtype: str

    def scales_of(self, name: str) -> tuple[str, ...]:
        """Return how the tensor may be called that has a matrix's scales."""
        other = (name.removesuffix("weight") + "scale",) if name.endswith(".weight") else ()
        return (name + _SCALES, *other)

    def shape_of(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
        """Return the shape of a matrix whose codes are of a dtype."""
        return (*shape[:-1], 2 * shape[-1]) if dtype == PAIRS else shape

    def activations_of(self, name: str) -> str:
        """Return the name of the tensor that has a scale of what a matrix meets."""
        if name.endswith(".weight"):
            return name.removesuffix("weight") + _ACTIVATIONS
        return f"{name}_{_ACTIVATIONS}"  # of all experts in one tensor

    def widen(self, at: str, codes: Array, scales: Array) -> Array:
        """Return codes [R, K] times the scales of their blocks, in ``dtype``; ``at`` names them.

        CheckpointError where a code is no number, or scales do not fit.
        """
        shape = codes.shape
        if len(shape) != 2:
            raise CheckpointError(f"{at}: expected a matrix of 8-bit floats, got shape {shape}")
        if codes.dtype == PAIRS:
            return self._widen_pairs(at, codes, scales)
        block = self.block or (MAX_SIZE, MAX_SIZE)
        if self.block is None and scales.size == 1:
            scales = scales.reshape(1, 1)
        grid = tuple(-(-size // part) for size, part in zip(shape, block, strict=True))
        if scales.shape != grid or scales.dtype not in [DTYPES[name] for name in _FLOATS]:
            raise CheckpointError(
                f"{at}: expected scales of shape {list(grid)} beside it, one for each block of "
                f"{block[0]} rows by {block[1]} columns, in {', '.join(_FLOATS)}, got "
                f"{list(scales.shape)} in {DTYPE_NAMES[scales.dtype]}"
            )
        wide = scales.astype(np.float32)
        self._check_scales(at, wide, LARGEST)
        rows, columns = shape
        found = np.empty(shape, np.dtype(self.dtype))
        step = max(1, CHUNK // max(columns, 1))
        width = min(block[1], columns)  # a config's block may be wider than every matrix
        for begin in range(0, rows, step):
            own = codes[begin : begin + step].view(np.uint8)
            _check_codes(at, own, begin)
            of_rows = wide[np.arange(begin, begin + len(own)) // block[0]]
            numbers = MEANING[own]
            numbers *= np.repeat(of_rows, width, axis=1)[:, :columns]
            found[begin : begin + step] = numbers  # rounds to nearest, ties to even
        return found

    def _widen_pairs(self, at: str, codes: Array, scales: Array) -> Array:
        rows, columns = self.shape_of(codes.shape, codes.dtype)
        grid = (rows, columns // _SHARED)
        if scales.shape != grid or columns % _SHARED or scales.dtype != DTYPES["F8_E8M0"]:
            raise CheckpointError(
                f"{at}: expected scales of shape {list(grid)} in F8_E8M0 beside it, one for each "
                f"{_SHARED} of a row, got {list(scales.shape)} in {DTYPE_NAMES[scales.dtype]}"
            )
        wide = scales.astype(np.float32)
        self._check_scales(at, wide, float(_HALVES.max()))
        found = np.empty((rows, columns), np.dtype(self.dtype))
        step = max(1, CHUNK // columns)
        for begin in range(0, rows, step):
            own = codes[begin : begin + step].view(np.uint8)
            numbers = _HALVES[np.stack([own & 15, own >> 4], axis=-1)].reshape(len(own), -1)
            numbers *= np.repeat(wide[begin : begin + step], _SHARED, axis=1)
            found[begin : begin + step] = numbers
        return found

    def _check_scales(self, at: str, scales: npt.NDArray[np.float32], largest: float) -> None:
        most = _MOST[self.dtype] / largest
        wrong = ~(np.abs(scales) <= most)  # also of what is no number
        if wrong.any():
            raise CheckpointError(
                f"{at}: expected scales of at most {most:g}, with which all codes are numbers of "
                f"{self.dtype}, got {float(scales[wrong][0]):g}"
            )


def _check_codes(at: str, codes: npt.NDArray[np.uint8], first: int) -> None:
    wrong = (codes & 0x7F) == 0x7F
    if wrong.any():
        row, column = map(int, np.argwhere(wrong)[0])
        raise CheckpointError(
            f"{at}: expected numbers, got the code {int(codes[row, column]):#x} of E4M3, which is "
            f"none, in row {first + row}, column {column}; fetch the file again"
        )


def parse_float8(fields: Fields) -> Float8 | None:
    """Read a config.json's ``quantization_config``; None where it is not of 8-bit floats.

    ConfigError for another way to scale them.
    """
    said = find_scheme(fields)
    if said is None or said.raw.get("quant_method") != METHOD:
        return None
    said.choice("fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
    said.choice("activation_scheme", ("dynamic", "static"), "dynamic")  # which is not heeded
    dtype = fields.choice(fields.first("dtype", "torch_dtype"), tuple(_MOST), "bfloat16")
    block: Any = said.raw.get("weight_block_size")
    if block is None:
        return Float8(None, dtype)
    whole = isinstance(block, list) and len(block) == 2
    if not whole or any(type(size) is not int or not 1 <= size <= MAX_SIZE for size in block):
        raise said.fault(
            "weight_block_size",
            "null, or the rows and the columns that share a scale, as [128, 128]",
            "; take a copy of the model in BF16, or a .gguf file of it",
        )
    return Float8((block[0], block[1]), dtype)


def find_scheme(fields: Fields) -> Fields | None:
    """Return the ``quantization_config`` of a config.json, if it has one.

    Kimi-K2.5 has it in text_config, where the fields of its text are.
    """
    said, text = fields.nested("quantization_config"), fields.raw.get("text_config")
    if said is not None or not isinstance(text, dict):
        return said
    inner = fields.nested("text_config")
    assert inner is not None
    return inner.nested("quantization_config")


def find_float8(folder: Path, dtypes: Iterable[np.dtype[np.generic]]) -> Float8 | None:
    """Return how a folder's 8-bit floats are read, if it has tensors of them."""
    config = folder / "config.json"
    if CODES not in dtypes or not config.is_file():
        return None
    return parse_float8(Fields(read_json_object(config), str(config)))
