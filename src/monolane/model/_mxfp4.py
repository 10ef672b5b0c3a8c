"""Experts in MXFP4 as a folder holds them, brought into GGUF's blocks: the same numbers, exactly.

Two tensors stand for one of floats, NAME: NAME_blocks [E, R, K/32, 16], two codes in a byte, the
first in its low half; NAME_scales [E, R, K/32], an exponent each. Rows of gate and up alternate. A
block of GGUF has the exponent before its codes, of columns c and c + 16 in byte c (``_formats.py``
says what they mean). Executors take them so, as from a .gguf file.

Source: integrations/mxfp4.py of github.com/huggingface/transformers.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from monolane.errors import CheckpointError
from monolane.model._checkpoint import Checkpoint
from monolane.model._quant_matrix import Blocks
from monolane.model._safetensors import DTYPE_NAMES, Array
from monolane.model._tensors import TensorSpec
from monolane.ops import Role

FORMAT = "mxfp4"
_GROUP, _BYTES = 32, 16  # columns and bytes of the codes of a block


@dataclass(frozen=True, slots=True)
class Mxfp4Experts:
    """All experts' matrices of one tensor; ``spec`` is that of the floats, columns first."""

    spec: TensorSpec
    checkpoint: Checkpoint

    @property
    def is_there(self) -> bool:
        """Whether the files hold it, or a part of it, in this form; else it may be floats."""
        return any(name in self.checkpoint for name in self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors that must be there."""
        return f"{self.spec.name}_blocks", f"{self.spec.name}_scales"

    @property
    def extra_names(self) -> tuple[str, ...]:
        """The tensors that may be there too: none."""
        return ()

    def read(self) -> Iterator[tuple[Role, int, Blocks]]:
        """Yield each expert's matrices, [R, K], in memory of their own.

        CheckpointError names the tensor that has another shape or dtype than config.json says.
        """
        experts, columns, rows = self.spec.shape
        groups = columns // _GROUP
        codes = self._tensor(0, (experts, rows, groups, _BYTES))
        scales = self._tensor(1, (experts, rows, groups))
        roles = [self.spec.role] if self.spec.also is None else [self.spec.role, self.spec.also]
        for expert in range(experts):
            for i, role in enumerate(roles):
                own = slice(i, None, len(roles))
                data = in_blocks(codes[expert, own], scales[expert, own])
                yield role, expert, Blocks(FORMAT, data, columns)

    def _tensor(self, place: int, shape: tuple[int, ...]) -> Array:
        name = self.names[place]
        array = self.checkpoint[name]
        if array.shape != shape or array.dtype != np.uint8:
            raise CheckpointError(
                f"{self.checkpoint.file_of(name)}: tensor {name!r}: expected U8 of shape "
                f"{list(shape)} from config.json, got {DTYPE_NAMES[array.dtype]} of "
                f"{list(array.shape)}"
            )
        return array


def in_blocks(codes: Array, scales: Array) -> Array:
    """Return codes [R, G, 16] and scales [R, G] as rows of GGUF's blocks, [R, G * 17]."""
    blocks = np.empty((*scales.shape, 1 + _BYTES), np.uint8)
    first, second = codes[..., : _BYTES // 2], codes[..., _BYTES // 2 :]  # columns 0..15 and 16..31
    blocks[..., 0] = scales
    blocks[..., 1::2] = (first & 15) | (second << 4)
    blocks[..., 2::2] = (first >> 4) | (second & 0xF0)
    return blocks.reshape(len(blocks), -1)
