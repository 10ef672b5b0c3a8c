"""A matrix in NVFP4 as a folder holds it, brought into GGUF's blocks: the same numbers.

A number is code * scale * factor: a code of 4 bits (E2M1), a scale for each 16 columns (E4M3), and
one float32 for the matrix.

    compressed-tensors  NAME.weight_packed U8 [R, K/2], two codes in a byte, the first in its low
                        half; .weight_scale E4M3 [R, K/16]; .weight_global_scale F32 [1], by which
                        is divided
    ModelOpt            NAME.weight, as weight_packed; .weight_scale; .weight_scale_2 F32 [], the
                        factor

A block of GGUF has 64 columns: four scales, and of each 16 columns 8 bytes with the codes of
columns c and c + 8. The factor stays beside the blocks. Numbers by which activations, keys and
values would be rounded lie there too; here executors choose how they round.

Sources: compressors/nvfp4_quantized.py of github.com/vllm-project/compressed-tensors;
torch/quantization/qtensor/nvfp4_tensor.py of github.com/NVIDIA/Model-Optimizer.
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from monolane.errors import CheckpointError
from monolane.model._checkpoint import Checkpoint
from monolane.model._gguf_factors import check_factors
from monolane.model._quant_foreign_config import ADVICE, Packing
from monolane.model._quant_matrix import Blocks
from monolane.model._safetensors import DTYPE_NAMES, DTYPES, Array
from monolane.model._tensors import TensorSpec

_BLOCK, _GROUP, _BYTES = 64, 16, 36  # columns of a block, of a scale; bytes of a block
_SCALES = _BLOCK // _GROUP
_PARTS = {
    "compressed-tensors": ("weight_packed", "weight_scale", "weight_global_scale"),
    "modelopt": ("weight", "weight_scale", "weight_scale_2"),
}
# Of activations, and of the keys or values that a matrix makes.
_UNREAD = ("input_global_scale", "input_scale", "k_scale", "v_scale")


@dataclass(frozen=True, slots=True)
class Nvfp4Matrix:
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
        return tuple(map(self._name, _PARTS[self.packing.method]))

    @property
    def extra_names(self) -> tuple[str, ...]:
        """The tensors that may be there too, and are not read."""
        return tuple(name for name in map(self._name, _UNREAD) if name in self.checkpoint)

    def read(self) -> Blocks:
        """Return the blocks, in memory of their own.

        CheckpointError names the tensor that has another shape or dtype than config.json says,
        scales that are none, or rows that are no whole blocks.
        """
        *outer, columns = self.spec.shape
        rows = prod(outer)
        if columns % _BLOCK:
            raise CheckpointError(
                f"{self.checkpoint.folder}: {self.spec.name}: expected columns that are a multiple "
                f"of {_BLOCK}, the block of NVFP4 here, got {columns}{ADVICE}"
            )
        codes = self._tensor(0, "U8", (rows, columns // 2))
        scales = self._tensor(1, "F8_E4M3", (rows, columns // _GROUP)).view(np.uint8)
        if wrong := scales[scales >= 0x7F].tolist():  # no number, or below zero
            raise self._fault(1, f"expected scales of zero and more, got the code {wrong[0]:#x}")
        blocks = np.empty((rows, columns // _BLOCK, _BYTES), np.uint8)
        blocks[..., :_SCALES] = scales.reshape(rows, -1, _SCALES)
        parts = codes.reshape(rows, -1, _SCALES, _GROUP // 2)
        first, second = parts[..., : _GROUP // 4], parts[..., _GROUP // 4 :]  # columns 0..7, 8..15
        both = blocks[..., _SCALES:].reshape(parts.shape)
        both[..., 0::2] = first & 15 | second << 4
        both[..., 1::2] = first >> 4 | second & 0xF0
        blocks[..., _SCALES:] = both.reshape(rows, -1, _BYTES - _SCALES)
        data = blocks.reshape(*outer, -1)
        return Blocks(self.packing.block_format, data, columns, self._factor())

    def _factor(self) -> float:
        number = self._tensor(2, "F32", (1,), ()).reshape(())
        at = f"{self.checkpoint.file_of(self.names[2])}: tensor {self.names[2]!r}"
        check_factors(at, [float(number)])
        if self.packing.method == "modelopt":
            return float(number)
        with np.errstate(over="ignore"):
            factor = float(np.float32(1) / number)
        check_factors(f"{at}, of which 1 is divided", [factor])
        return factor

    def _name(self, part: str) -> str:
        return self.spec.name.removesuffix("weight") + part

    def _tensor(self, place: int, dtype: str, *shapes: tuple[int, ...]) -> Array:
        array = self.checkpoint[self.names[place]]
        if array.shape not in shapes or array.dtype != DTYPES[dtype]:
            raise self._fault(
                place,
                f"expected {dtype} of shape {' or '.join(str(list(x)) for x in shapes)} from "
                f"config.json, got {DTYPE_NAMES[array.dtype]} of {list(array.shape)}",
            )
        return array

    def _fault(self, place: int, message: str) -> CheckpointError:
        name = self.names[place]
        return CheckpointError(f"{self.checkpoint.file_of(name)}: tensor {name!r}: {message}")
