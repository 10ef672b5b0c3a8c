"""A matrix that another tool quantised, brought into our own order of codes and scales: exactly.

The numbers stay the same, bit by bit: (code - zero point) * scale; only their places change. Codes
are taken a few rows at a time, so that the work needs some megabytes beside the result. It runs at
load, into memory; ``repack_folder`` (``monolane quantize --dtype auto``) writes the result once.

Layouts, R rows (outputs) of K columns (inputs), G groups of columns, eight 4-bit codes (four 8-bit
ones) in an int32, the first lowest:

    packed rows  NAME.weight_packed [R, K/8], code + 8; .weight_scale [R, G] (one number for the
                 strategy "tensor"); .weight_zero_point [R/8, G], packed along the rows, + 8
    int8 rows    NAME.weight int8 [R, K]; .weight_scale as above
    gptq         NAME.qweight [K/8, R], packed along the columns of W; .qzeros [G, R/8], each less
                 one in the first format; .scales [G, R]; .g_idx [K], the group of each column
    awq          NAME.qweight [K, R/8] and .qzeros [G, R/8], packed along the rows, of eight in the
                 order 0 2 4 6 1 3 5 7; .scales [G, R]

Sources: compressors/pack_quantized/helpers.py of github.com/vllm-project/compressed-tensors;
auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py of github.com/AutoGPTQ/AutoGPTQ;
awq/modules/linear/gemm.py and awq/utils/packing_utils.py of github.com/casper-hansen/AutoAWQ.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from monolane.errors import CheckpointError
from monolane.model._checkpoint import Checkpoint
from monolane.model._quant_foreign_config import ADVICE, SHARED_SCALE, Layout, Packing
from monolane.model._quant_matrix import Quantized
from monolane.model._safetensors import DTYPE_NAMES, DTYPES, Array
from monolane.model._tensors import TensorSpec

Codes = npt.NDArray[np.uint8]

CHUNK = 1 << 20  # codes that are in hand at a time
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # where each of eight rows lies in its int32
_WORDS = ("I32",)
_FLOATS = ("F16", "BF16", "F32")


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """One matrix in the files, in the layout of ``packing``; ``spec`` is that of the float one."""

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
        packing = self.packing
        if packing.layout in ("gptq", "awq"):
            parts: tuple[str, ...] = ("qweight", "qzeros", "scales")
        else:
            first = "weight" if packing.layout == "int8 rows" else "weight_packed"
            parts = (first, "weight_scale")
            parts += () if packing.symmetric else ("weight_zero_point",)
        return tuple(map(self._name, parts))

    @property
    def extra_names(self) -> tuple[str, ...]:
        """The tensors that may be there too, and that ``read`` holds against the config."""
        parts = {
            "gptq": ("g_idx",),
            "awq": (),
            "packed rows": ("weight_shape", "weight_g_idx"),
            "int8 rows": (),
        }[self.packing.layout]
        return tuple(name for name in map(self._name, parts) if name in self.checkpoint)

    @property
    def nbytes(self) -> int:
        """Bytes in the files."""
        return sum(map(self.checkpoint.bytes_of, (*self.names, *self.extra_names)))

    def read(self) -> Quantized:
        """Return the codes and scales in our order, in memory of their own.

        CheckpointError names the tensor that has another shape or dtype than config.json says,
        scales that are no float16, or groups that are not whole.
        """
        self._check_order()
        parts = _PARTS[self.packing.layout](self)  # before anything of the size is made
        kept = self.packing.kept_bits
        codes = np.empty((self.rows, self.columns * kept // 8), np.uint8)
        scales = np.empty((self.rows, self.columns // SHARED_SCALE), np.float16)
        for begin, end in self._chunks():
            codes[begin:end] = self._ours(parts.codes(begin, end), parts.zeros[begin:end])
            exact = self._half(parts.scales[begin:end])  # [n, G]
            scales[begin:end] = np.repeat(exact, scales.shape[1] // exact.shape[1], axis=1)
        outer = self.spec.shape[:-1]
        stored = codes if kept == 4 else codes.view(np.int8)
        return Quantized(kept, stored.reshape(*outer, -1), scales.reshape(*outer, -1))

    @property
    def rows(self) -> int:
        """Outputs, R."""
        return prod(self.spec.shape[:-1])

    @property
    def columns(self) -> int:
        """Inputs, K."""
        return self.spec.shape[-1]

    @property
    def groups(self) -> int:
        """Groups of columns that share a scale, G; CheckpointError if they are not whole."""
        group = self.packing.group or self.columns
        if self.columns % group:
            raise CheckpointError(
                f"{self.checkpoint.folder}: {self.spec.name}: expected columns that are a multiple "
                f"of group_size ({group}), got {self.columns}{ADVICE}"
            )
        return self.columns // group

    def _name(self, part: str) -> str:
        return self.spec.name.removesuffix("weight") + part

    def _chunks(self) -> Iterator[tuple[int, int]]:
        step = max(8, CHUNK // self.columns // 8 * 8)  # AWQ has eight rows in a word
        for begin in range(0, self.rows, step):
            yield begin, min(begin + step, self.rows)

    def tensor(self, part: str, dtypes: tuple[str, ...], *shapes: tuple[int, ...]) -> Array:
        """Return one tensor, of one of these dtypes and shapes."""
        name = self._name(part)
        array = self.checkpoint[name]
        if array.shape not in shapes:
            expected = " or ".join(str(list(shape)) for shape in shapes)
            raise self._fault(
                part, f"expected shape {expected} from config.json, got {list(array.shape)}"
            )
        if array.dtype not in [DTYPES[x] for x in dtypes]:
            raise self._fault(
                part, f"expected {' or '.join(dtypes)}, got {DTYPE_NAMES[array.dtype]}"
            )
        return array

    def _fault(self, part: str, message: str) -> CheckpointError:
        name = self._name(part)
        return CheckpointError(f"{self.checkpoint.file_of(name)}: tensor {name!r}: {message}")

    def _ours(self, codes: Codes, zeros: Codes) -> Codes:
        """Return unsigned codes [n, K] as our bytes: [n, K/2] or [n, K]."""
        packing = self.packing
        half = 1 << (packing.bits - 1)
        if packing.symmetric and (zeros != half).any():
            raise CheckpointError(
                f"{self.checkpoint.folder}: {self.spec.name}: expected the zero point {half} "
                f"everywhere, since config.json says symmetric, got {int(zeros[zeros != half][0])}"
                f"; config.json and the weights are not of one model"
            )
        if packing.kept_bits == 4:  # half a group's codes in the low halves of its bytes
            pair = codes.reshape(len(codes), -1, 2, SHARED_SCALE // 2)
            joined: Codes = pair[:, :, 0] | pair[:, :, 1] << np.uint8(4)
            return joined.reshape(len(codes), -1)
        # Modulo 256: differences from -15 to 15, or from -128 to 127, are these bytes as int8.
        grouped = codes.reshape(*zeros.shape, -1)  # [n, G, group]
        less: Codes = grouped - zeros[:, :, None]
        return less.reshape(codes.shape)

    def _half(self, scales: Array) -> npt.NDArray[np.float16]:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            half = scales.astype(np.float16)
        wrong = (half.astype(np.float32) != scales.astype(np.float32)) | ~np.isfinite(half)
        if wrong.any():
            part = "scales" if self.packing.layout in ("gptq", "awq") else "weight_scale"
            value = float(scales[wrong][0])
            raise self._fault(
                part, f"expected scales that a float16 holds exactly, got {value:.9g}{ADVICE}"
            )
        return half

    def _check_order(self) -> None:
        """Check what only some files hold: the shape once more, and the group of each column."""
        group = self.columns // self.groups
        for name in self.extra_names:
            part = name.removeprefix(self._name(""))
            if part == "weight_shape":
                said = self.tensor(part, ("I64", "I32"), (2,)).tolist()
                if said != [self.rows, self.columns]:
                    raise self._fault(
                        part, f"expected {[self.rows, self.columns]} from config.json, got {said}"
                    )
                continue
            order = self.tensor(part, ("I32", "I64"), (self.columns,))
            if (order != np.arange(self.columns) // group).any():
                raise self._fault(
                    part,
                    f"expected column k in group k // {group}, got another order (act-order, "
                    f"desc_act){ADVICE}",
                )


@dataclass(frozen=True, slots=True)
class _Parts:
    """The tensors of a matrix, checked, whatever their layout; codes and zero points unsigned."""

    codes: Callable[[int, int], Codes]  # of rows begin .. end - 1: [n, K]
    zeros: Codes  # [R, G]
    scales: Array  # [R, G], as stored


def _packed_rows(matrix: PackedMatrix) -> _Parts:
    rows, columns, bits = matrix.rows, matrix.columns, matrix.packing.bits
    stored = matrix.tensor("weight_packed", _WORDS, (rows, words(columns, bits)))
    zeros = _half_range(matrix) if matrix.packing.symmetric else _packed_zeros(matrix)

    def codes(begin: int, end: int) -> Codes:
        return unpack(stored[begin:end], bits)[:, :columns]

    return _Parts(codes, zeros, _row_scales(matrix))


def _packed_zeros(matrix: PackedMatrix) -> Codes:
    rows, groups, bits = matrix.rows, matrix.groups, matrix.packing.bits
    shapes = (words(rows, bits), groups), (rows, groups)
    stored = matrix.tensor("weight_zero_point", ("I32", "I8"), *shapes)
    if stored.dtype == np.int32:
        return unpack(stored.T, bits)[:, :rows].T
    # As written before the zero points were packed.
    return (stored.view(np.uint8) + np.uint8(1 << (bits - 1))) & np.uint8((1 << bits) - 1)


def _int8_rows(matrix: PackedMatrix) -> _Parts:
    stored = matrix.tensor("weight", ("I8",), (matrix.rows, matrix.columns))

    def codes(begin: int, end: int) -> Codes:
        return stored[begin:end].view(np.uint8) ^ np.uint8(128)

    return _Parts(codes, _half_range(matrix), _row_scales(matrix))


def _row_scales(matrix: PackedMatrix) -> Array:
    shape = matrix.rows, matrix.groups
    single = [(1,), (1, 1)] if matrix.groups == 1 else []  # the strategy "tensor"
    return np.broadcast_to(matrix.tensor("weight_scale", _FLOATS, shape, *single), shape)


def _half_range(matrix: PackedMatrix) -> Codes:
    half = np.uint8(1 << (matrix.packing.bits - 1))
    return np.broadcast_to(half, (matrix.rows, matrix.groups))


def _gptq(matrix: PackedMatrix) -> _Parts:
    rows, groups, bits = matrix.rows, matrix.groups, matrix.packing.bits
    stored = matrix.tensor("qweight", _WORDS, (words(matrix.columns, bits), rows))
    zeros = unpack(matrix.tensor("qzeros", _WORDS, (groups, words(rows, bits))), bits)
    # The quantiser's zero points are 0 .. 15: stored less one, 0 is 15.
    whole = (zeros + np.uint8(matrix.packing.zero_shift)) & np.uint8((1 << bits) - 1)

    def codes(begin: int, end: int) -> Codes:
        return unpack(stored[:, begin:end].T, bits)

    return _Parts(codes, whole[:, :rows].T, matrix.tensor("scales", _FLOATS, (groups, rows)).T)


def _awq(matrix: PackedMatrix) -> _Parts:
    rows, groups = matrix.rows, matrix.groups
    stored = matrix.tensor("qweight", _WORDS, (matrix.columns, words(rows, 4)))
    zeros = matrix.tensor("qzeros", _WORDS, (groups, words(rows, 4)))

    def codes(begin: int, end: int) -> Codes:
        return in_order(stored[:, begin // 8 : words(end, 4)])[: end - begin]

    def in_order(packed: Array) -> Codes:  # [x, n/8] words to [n, x] codes
        turned = np.ascontiguousarray(packed.T).view(np.uint32)  # words: an eighth of the moves
        found = np.empty((len(turned), 8, len(packed)), np.uint8)
        for row, place in enumerate(_AWQ_PLACES):
            found[:, row] = turned >> np.uint32(4 * place) & np.uint32(15)
        return found.reshape(-1, len(packed))

    scales = matrix.tensor("scales", _FLOATS, (groups, rows)).T
    return _Parts(codes, in_order(zeros)[:rows], scales)


_PARTS: dict[Layout, Callable[[PackedMatrix], _Parts]] = {
    "packed rows": _packed_rows,
    "int8 rows": _int8_rows,
    "gptq": _gptq,
    "awq": _awq,
}


def words(codes: int, bits: int) -> int:
    """Return how many int32 hold so many codes; what is left of the last one is padding."""
    return -(-codes * bits // 32)


def unpack(packed: Array, bits: int) -> Codes:
    """Return the unsigned codes of int32 words, the first in the lowest bits: [n, words * 32/bits].

    The words' bytes are in the order of a safetensors file, little-endian.
    """
    bytes_ = np.ascontiguousarray(packed).view(np.uint8)  # [n, 4 * words]
    if bits == 8:
        return bytes_
    found = np.empty((len(bytes_), bytes_.shape[1], 2), np.uint8)
    found[:, :, 0] = bytes_ & 15
    found[:, :, 1] = bytes_ >> 4
    return found.reshape(len(bytes_), -1)
