"""One GGUF file, memory-mapped and checked before a byte of it is believed.

The ``gguf`` package reads such files too, but it believes counts and offsets, and makes two arrays
of each text: seconds for a vocabulary. So the format is read here; the tests hold types and values
against the package.

Format, version 3 (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), little-endian: the
magic, a version, the numbers of tensors and of metadata fields; the fields (name, type, value); the
tensors' infos (name, sizes with the columns first, type, offset); padding; the data. A text has its
length before it, a list the type and number of its items.
"""

import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn, overload

import numpy as np

from monolane.errors import CheckpointError
from monolane.model._gguf_types import GGML_TYPES, GgmlType, name_unread
from monolane.model._mapped_file import MappedFile
from monolane.model._quant_matrix import Blocks
from monolane.model._safetensors import Array

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # 3 differs in that it allows files of the other byte order
MAX_RANK = 4  # of ggml
MAX_NAME = 65535  # bytes of a field's name, by the format
DEFAULT_ALIGNMENT = 32
_SHORTEST_FIELD = 8 + 4 + 1  # bytes: length of the name, type, a value of one byte
_SHORTEST_TENSOR = 8 + 4 + 8 + 4 + 8  # length of the name, rank, one size, type, offset

# Type of a metadata value -> its dtype; besides these there are texts and lists.
_SCALARS = {
    place: np.dtype(name)
    for place, name in enumerate(("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?"))
} | {10: np.dtype("<u8"), 11: np.dtype("<i8"), 12: np.dtype("<f8")}
_TEXT, _LIST = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class Texts(Sequence[str]):
    """A list of texts in a file: found to be whole when it is opened, decoded when it is read.

    A vocabulary has some hundred thousand; whoever wants the model's sizes pays for none.
    """

    def __init__(self, mapping: mmap.mmap, begin: int, count: int, at: str) -> None:
        self._mapping, self._begin, self._count, self._at = mapping, begin, count, at

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        mapping, at, length = self._mapping, self._begin, _U64.unpack_from
        for i in range(self._count):
            (size,) = length(mapping, at)
            at += 8
            try:
                yield mapping[at : at + size].decode()
            except UnicodeDecodeError as error:
                raise CheckpointError(
                    f"{self._at}: item {i}: expected a text in UTF-8, got: {error}"
                ) from None
            at += size

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        return list(self)[place]


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where one tensor lies; ``begin`` and ``end`` count bytes from the start of the file."""

    name: str
    type: GgmlType
    shape: tuple[int, ...]  # columns last, as NumPy has it; the file has them first
    begin: int
    end: int


class GgufFile(Mapping[str, "Array | Blocks"]):
    """The tensors of one file as read-only views of its mapping, and its ``metadata``.

    A metadata value is an int, float, bool or str; an array for a list of numbers; ``Texts`` for a
    list of texts. CheckpointError names file and field (or tensor) if anything is malformed; what
    is allocated is bounded by the file's size. The mapping lives as long as any view of it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = MappedFile(path, 1)
        self._mapping, self._size = self.file.mapping, self.file.size
        _check_start(path, self._mapping[:8])
        self._at = 8
        self._field = "the header"  # what is read now, for messages
        num_tensors = self._count(_SHORTEST_TENSOR, "number of tensors")
        num_fields = self._count(_SHORTEST_FIELD, "number of metadata fields")
        self.metadata = self._read_metadata(num_fields)
        self.alignment = self._read_alignment()
        infos = self._read_infos(num_tensors)
        data = -(-self._at // self.alignment) * self.alignment
        self.tensors = {info[0]: self._place(*info, data) for info in infos}
        self._check_overlaps()

    def __getitem__(self, name: str) -> "Array | Blocks":
        tensor = self.tensors[name]
        kind = tensor.type
        if kind.dtype is not None:
            array: Array = np.ndarray(tensor.shape, kind.dtype, self._mapping, tensor.begin)
            return array
        *outer, columns = tensor.shape
        row = columns // kind.block * kind.bytes
        data: Array = np.ndarray((*outer, row), np.uint8, self._mapping, tensor.begin)
        return Blocks(kind.format, data, columns)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def _fail(self, message: str, advice: str = "download or write the file again") -> NoReturn:
        raise CheckpointError(f"{self.path}: {self._field}: {message}; {advice}")

    def _take(self, size: int) -> int:
        """Step over ``size`` bytes and return where they begin."""
        at = self._at
        if size > self._size - at:
            self._fail(
                f"expected {size} bytes from byte {at} on, the file ends at {self._size}; "
                "it is truncated"
            )
        self._at = at + size
        return at

    def _u32(self) -> int:
        return int(_U32.unpack_from(self._mapping, self._take(4))[0])

    def _u64(self) -> int:
        return int(_U64.unpack_from(self._mapping, self._take(8))[0])

    def _count(self, shortest: int, what: str) -> int:
        """Read how many things follow of at least ``shortest`` bytes; no file holds more."""
        count, most = self._u64(), (self._size - self._at) // shortest
        if count > most:
            self._fail(f"{what}: expected at most {most}, which this file could hold, got {count}")
        return count

    def _text(self, longest: int) -> str:
        size = self._u64()
        if size > longest:
            self._fail(f"expected a text of at most {longest} bytes, got {size}")
        at = self._take(size)
        try:
            return self._mapping[at : at + size].decode()
        except UnicodeDecodeError as error:
            self._fail(f"expected a text in UTF-8, got: {error}")

    def _read_metadata(self, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for i in range(count):
            self._field = f"metadata field {i} of {count}"
            name = self._text(MAX_NAME)
            self._field = f"metadata {name!r:.90}"
            if name in found:
                self._fail("this field occurs twice")
            found[name] = self._value(self._u32())
        return found

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text(self._size)
        if kind == _LIST:
            return self._list(self._u32())
        dtype = self._dtype(kind)
        value = np.ndarray((), dtype, self._mapping, self._take(dtype.itemsize))
        # The shortest decimal that is this float32: 1e-05, as the config said, not 9.99999975e-06.
        return float(str(value)) if dtype == np.float32 else value.item()

    def _list(self, kind: int) -> Any:
        if kind == _LIST:
            self._fail("expected a list of numbers or texts, got a list of lists")
        if kind != _TEXT:
            dtype = self._dtype(kind)
            count = self._count(dtype.itemsize, "number of items")
            at = self._take(count * dtype.itemsize)
            return np.ndarray((count,), dtype, self._mapping, at)
        count = self._count(8, "number of items")
        begin = self._at
        self._skip_texts(count)
        return Texts(self._mapping, begin, count, f"{self.path}: {self._field}")

    def _skip_texts(self, count: int) -> None:
        # In locals, without _take: a vocabulary with its merges has half a million of them.
        mapping, at, length, last = self._mapping, self._at, _U64.unpack_from, self._size - 8
        for i in range(count):
            if at > last:
                self._fail(f"item {i} of {count}: the file ends before it; it is truncated")
            at += 8 + length(mapping, at)[0]
        if at > self._size:
            self._fail("its last items lie behind the end of the file; it is truncated")
        self._at = at

    def _dtype(self, kind: int) -> np.dtype[Any]:
        if kind not in _SCALARS:
            self._fail(f"expected a value type from 0 to 12, got {kind}")
        return _SCALARS[kind]

    def _read_alignment(self) -> int:
        value = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        self._field = "metadata 'general.alignment'"
        if type(value) is not int or not 8 <= value <= 1 << 20 or value & (value - 1):
            self._fail(f"expected a power of two from 8 to {1 << 20}, got {value!r:.80}")
        return value

    def _read_infos(self, count: int) -> list[tuple[str, int, tuple[int, ...], int]]:
        found: dict[str, tuple[str, int, tuple[int, ...], int]] = {}
        for i in range(count):
            self._field = f"tensor {i} of {count}"
            name = self._text(MAX_NAME)
            self._field = f"tensor {name!r:.90}"
            if name in found:
                self._fail("a tensor of this name occurs twice")
            rank = self._u32()
            if not 1 <= rank <= MAX_RANK:
                self._fail(f"expected 1 to {MAX_RANK} sizes, got {rank}")
            shape = tuple(self._u64() for _ in range(rank))[::-1]
            found[name] = (name, self._u32(), shape, self._u64())
        return list(found.values())

    def _place(
        self, name: str, number: int, shape: tuple[int, ...], offset: int, data: int
    ) -> GgufTensor:
        self._field = f"tensor {name!r:.90}"
        kind = GGML_TYPES.get(number)
        if kind is None:
            known = ", ".join(row.name for row in GGML_TYPES.values())
            self._fail(
                f"expected a type among {known}, got {name_unread(number)}",
                "take another file of this model, such as its Q4_K_M, Q8_0 or BF16, or make one "
                "with llama.cpp's llama-quantize",
            )
        if min(shape) < 1:
            self._fail(f"expected sizes of 1 and more, got {list(shape)}")
        if shape[-1] % kind.block:
            self._fail(
                f"expected columns in multiples of {kind.block}, the block of {kind.name}, "
                f"got {shape[-1]}"
            )
        if offset % self.alignment:
            self._fail(f"expected an offset in multiples of {self.alignment}, got {offset}")
        begin = data + offset
        end = begin + prod(shape) // kind.block * kind.bytes
        if end > self._size:
            self._fail(
                f"its data ends at byte {end}, the file at {self._size}; the file is truncated, "
                "or it is one part of several"
            )
        return GgufTensor(name, kind, shape, begin, end)

    def _check_overlaps(self) -> None:
        at, before = 0, ""
        for tensor in sorted(self.tensors.values(), key=lambda x: (x.begin, x.end)):
            if tensor.begin < at:
                self._field = f"tensor {tensor.name!r:.90}"
                self._fail(
                    f"it begins at byte {tensor.begin}, within tensor {before!r:.90}, "
                    f"which ends at {at}"
                )
            at, before = tensor.end, tensor.name


def _check_start(path: Path, start: bytes) -> None:
    """Refuse what is no GGUF file of ours by its first 8 bytes, and say what it is."""
    if start[:4] != MAGIC:
        raise CheckpointError(
            f"{path}: expected a GGUF file, which begins with {MAGIC!r}, got {start[:4]!r}; "
            "download or write the file again"
        )
    version = int.from_bytes(start[4:], "little")
    if len(start) < 8:
        raise CheckpointError(f"{path}: the header: it is truncated; download the file again")
    if version not in VERSIONS:
        expected = f"{path}: version: expected {' or '.join(map(str, VERSIONS))}"
        if version & 0xFFFF == 0:
            raise CheckpointError(
                f"{expected}, little-endian, got {version >> 24}, big-endian; take the "
                "little-endian file of this model"
            )
        raise CheckpointError(
            f"{expected}, got {version}; convert the model again with a current llama.cpp"
            if version < 2
            else f"{expected}, got {version}, of a newer format; use a newer monolane"
        )
