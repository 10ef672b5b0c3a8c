"""A matrix in MLX's affine codes of 4 bits, brought into GGUF's blocks (Q4_1): the same numbers.

NAME.weight U32 [R, K/8] holds the codes, the first in the lowest bits; NAME.scales and NAME.biases
[R, G] are of groups of columns. A number is code * scale + bias. A block has 32 columns: the scale
and the bias as float16, which are refused where that does not hold them exactly, and the codes of
columns c and c + 16 in byte c.

Source: mlx.core.quantize in the documentation of github.com/ml-explore/mlx.
"""

from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from monolane.errors import CheckpointError
from monolane.model._checkpoint import Checkpoint
from monolane.model._quant_foreign_config import ADVICE, BLOCK_FORMATS, SHARED_SCALE, Packing
from monolane.model._quant_matrix import Blocks
from monolane.model._safetensors import DTYPE_NAMES, DTYPES, Array
from monolane.model._tensors import TensorSpec

_PARTS = ("weight", "scales", "biases")
_FLOATS = ("F16", "BF16", "F32")
_BYTES = 20  # of a block
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

    def read(self) -> Blocks:
        """Return the blocks, in memory of their own.

        CheckpointError names the tensor that has another shape or dtype than config.json says, or
        scales and biases that are no float16.
        """
        *outer, columns = self.spec.shape
        rows, group = prod(outer), self.packing.group or columns
        if columns % group:
            raise CheckpointError(
                f"{self.checkpoint.folder}: {self.spec.name}: expected columns that are a multiple "
                f"of group_size ({group}), got {columns}{ADVICE}"
            )
        words = self._tensor(0, ("U32",), (rows, columns // 8))
        halves = [self._half(place, (rows, columns // group)) for place in (1, 2)]
        blocks = np.empty((rows, columns // SHARED_SCALE, _BYTES), np.uint8)
        for i, half in enumerate(halves):
            each = np.repeat(half, group // SHARED_SCALE, axis=1)
            blocks[..., 2 * i : 2 * i + 2] = each[..., None].view(np.uint8)
        step = max(1, _CHUNK // columns)
        for begin in range(0, rows, step):
            own = slice(begin, begin + step)
            codes = np.ascontiguousarray(words[own]).view(np.uint8)
            pairs = codes.reshape(-1, columns // SHARED_SCALE, 2, 8)  # of columns 0..15 and 16..31
            first, second = pairs[:, :, 0], pairs[:, :, 1]
            blocks[own, :, 4::2] = first & 15 | second << 4
            blocks[own, :, 5::2] = first >> 4 | second & 0xF0
        data = blocks.reshape(*outer, -1)
        return Blocks(BLOCK_FORMATS[self.packing.layout], data, columns)

    def _half(self, place: int, shape: tuple[int, int]) -> npt.NDArray[np.float16]:
        numbers = self._tensor(place, _FLOATS, shape)
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
