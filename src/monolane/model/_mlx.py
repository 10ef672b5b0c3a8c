"""A matrix in MLX's affine codes, brought into GGUF's blocks: the same numbers.

NAME.weight U32 [R, K * bits / 32] holds the codes, the first in the lowest bits; NAME.scales and
NAME.biases [R, G] are of groups of columns. A number is code * scale + bias. Of 2 to 4 bits it goes
into Q4_1, of 5 into Q5_1, whose blocks have a scale and a minimum. Of 8 bits it goes into Q8_0,
which has a scale alone, and only where each bias is a whole number of scales, and codes less that
number fit a byte with a sign. Scales and biases become float16, and are refused where that does not
hold them exactly. What stays in floats, such as a router, is widened to float32: of codes of 8 bits
with scales and biases of 16 that is exact.

Source: mlx.core.quantize in the documentation of github.com/ml-explore/mlx.
"""

from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from monolane.errors import CheckpointError
from monolane.model._checkpoint import Checkpoint
from monolane.model._quant_foreign_config import ADVICE, SHARED_SCALE, Packing
from monolane.model._quant_matrix import Blocks
from monolane.model._safetensors import DTYPE_NAMES, DTYPES, Array
from monolane.model._tensors import TensorSpec
from monolane.ops import Kind

Codes = npt.NDArray[np.uint8]

_PARTS = ("weight", "scales", "biases")
_FLOATS = ("F16", "BF16", "F32")
_BYTES = {"q4_1": 20, "q5_1": 24, "q8_0": 34}  # of a block
_NO_BLOCKS = (
    ", which no blocks hold; take the folder in 4 bits, a .gguf file in Q8_0, or the unquantised "
    "weights and 'monolane quantize'"
)
_CHUNK = 1 << 20  # codes that are in hand at a time


@dataclass(frozen=True, slots=True)
class MlxMatrix:
    """One matrix in the files; ``spec`` is that of the float one."""

    packing: Packing
    spec: TensorSpec
    checkpoint: Checkpoint

    @property
    def is_there(self) -> bool:
        """Whether the files hold it, or a part of it, in this layout; else it may be floats."""
        return any(name in self.checkpoint for name in self.names if name != self.spec.name)

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors that must be there."""
        return tuple(self.spec.name.removesuffix("weight") + part for part in _PARTS)

    @property
    def extra_names(self) -> tuple[str, ...]:
        """The tensors that may be there too: none."""
        return ()

    def read(self) -> "Blocks | Array":
        """Return the blocks, or float32 where the role stays in floats, in memory of their own.

        CheckpointError names the tensor that has another shape or dtype than config.json says, or
        scales and biases that the blocks do not hold.
        """
        *outer, columns = self.spec.shape
        rows, bits, group = prod(outer), self.packing.bits, self.packing.group or columns
        if columns % group:
            raise CheckpointError(
                f"{self.checkpoint.folder}: {self.spec.name}: expected columns that are a multiple "
                f"of group_size ({group}), got {columns}{ADVICE}"
            )
        words = self._tensor(0, ("U32",), (rows, columns * bits // 32))
        scales, biases = (self._tensor(i, _FLOATS, (rows, columns // group)) for i in (1, 2))
        if self.spec.role.kind is Kind.KEPT:
            numbers = _codes(words, bits).reshape(rows, -1, group).astype(np.float32)
            numbers *= scales.astype(np.float32)[..., None]
            numbers += biases.astype(np.float32)[..., None]
            return numbers.reshape(self.spec.shape)
        format_ = self.packing.block_format
        blocks = np.empty((rows, columns // SHARED_SCALE, _BYTES[format_]), np.uint8)
        halves = [self._half(1, scales)]
        if bits < 8:
            halves.append(self._half(2, biases))
        for i, half in enumerate(halves):
            each = np.repeat(half, group // SHARED_SCALE, axis=1)
            blocks[..., 2 * i : 2 * i + 2] = each[..., None].view(np.uint8)
        zeros = self._zeros(scales, biases) if bits == 8 else None
        step = max(1, _CHUNK // columns)
        for begin in range(0, rows, step):
            own = slice(begin, begin + step)
            codes = _codes(words[own], bits)
            if zeros is not None:
                codes = self._signed(codes.reshape(len(codes), -1, group), zeros[own])
            _pack(format_, codes.reshape(len(codes), -1, SHARED_SCALE), blocks[own])
        return Blocks(format_, blocks.reshape(*outer, -1), columns)

    def _zeros(self, scales: Array, biases: Array) -> npt.NDArray[np.int16]:
        """Return by how many scales a bias is below zero, [R, G]: a whole number."""
        scale, bias = scales.astype(np.float64), biases.astype(np.float64)
        zeros = np.rint(np.divide(-bias, scale, out=np.zeros_like(bias), where=scale != 0))
        wrong = ~((zeros * scale == -bias) & (np.abs(zeros) <= 255))
        if wrong.any():
            ratio = f"{float(bias[wrong][0]):.9g} with a scale of {float(scale[wrong][0]):.9g}"
            raise self._fault(
                2,
                f"expected, of 8 bits, biases that are a whole number of scales, got {ratio}"
                + _NO_BLOCKS,
            )
        return zeros.astype(np.int16)

    def _signed(self, codes: Codes, zeros: npt.NDArray[np.int16]) -> Codes:
        """Return codes [n, G, group] less their zeros as the bytes of int8."""
        less = codes.astype(np.int16) - zeros[..., None]
        wrong = (less < -128) | (less > 127)
        if wrong.any():
            raise self._fault(
                0,
                f"expected, of 8 bits, codes from -128 to 127 less what the bias says, got "
                f"{int(less[wrong][0])}{_NO_BLOCKS}",
            )
        return less.astype(np.int8).view(np.uint8)

    def _half(self, place: int, numbers: Array) -> npt.NDArray[np.float16]:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            half = numbers.astype(np.float16)
        wrong = (half.astype(np.float32) != numbers.astype(np.float32)) | ~np.isfinite(half)
        if wrong.any():
            value = float(numbers[wrong][0])
            raise self._fault(
                place, f"expected numbers that a float16 holds exactly, got {value:.9g}{ADVICE}"
            )
        return half

    def _tensor(self, place: int, dtypes: tuple[str, ...], shape: tuple[int, int]) -> Array:
        array = self.checkpoint[self.names[place]]
        if array.shape != shape or array.dtype not in [DTYPES[name] for name in dtypes]:
            raise self._fault(
                place,
                f"expected {' or '.join(dtypes)} of shape {list(shape)} from config.json, got "
                f"{DTYPE_NAMES[array.dtype]} of {list(array.shape)}",
            )
        return array

    def _fault(self, place: int, message: str) -> CheckpointError:
        name = self.names[place]
        return CheckpointError(f"{self.checkpoint.file_of(name)}: tensor {name!r}: {message}")


def _codes(words: Array, bits: int) -> Codes:
    """Return the codes of words [n, K * bits / 32]: [n, K]."""
    stored = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return stored
    if bits == 4:
        pairs = np.empty((*stored.shape, 2), np.uint8)
        pairs[..., 0], pairs[..., 1] = stored & 15, stored >> 4
        return pairs.reshape(len(stored), -1)
    single = np.unpackbits(stored, axis=1, bitorder="little").reshape(len(stored), -1, bits)
    return np.packbits(single, axis=2, bitorder="little")[..., 0]


def _pack(format_: str, codes: Codes, blocks: Codes) -> None:
    """Write codes [n, K/32, 32] behind the scales of blocks [n, K/32, bytes]."""
    if format_ == "q8_0":
        blocks[..., 2:] = codes
        return
    if format_ == "q5_1":
        blocks[..., 4:8] = np.packbits(codes >> 4, axis=-1, bitorder="little")
    first, second = codes[..., : SHARED_SCALE // 2], codes[..., SHARED_SCALE // 2 :]
    blocks[..., -(SHARED_SCALE // 2) :] = first & 15 | (second & 15) << 4
