"""One safetensors file, memory-mapped and checked before a byte of it is believed.

The safetensors library copies what it reads and does not always name the tensor at fault; the
executors stream weights from the mapping itself, and a user with a broken download must learn which
file and which tensor to fetch again. The tests hold this reader against the library's.

Format (https://huggingface.co/docs/safetensors): 8 bytes of header length, little-endian; a JSON
header {name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {str: str}}; then
the data, which the tensors cover completely and without overlap.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
import numpy.typing as npt

from monolane._regular_files import check_parts
from monolane.errors import CheckpointError
from monolane.model._mapped_file import MappedFile

Array = npt.NDArray[Any]

DTYPES: dict[str, np.dtype[Any]] = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "BOOL": np.dtype(np.bool_),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "I16": np.dtype(np.int16),
    "U16": np.dtype(np.uint16),
    "I32": np.dtype(np.int32),
    "U32": np.dtype(np.uint32),
    "I64": np.dtype(np.int64),
    "U64": np.dtype(np.uint64),
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
FLOATS = ("BF16", "F16", "F32")  # of weights that are not quantised

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_RANK = 8
_LENGTH_BYTES = 8  # of the header's length, before it
MAX_ELEMENTS = 1 << 62  # also of an empty tensor's other dimensions: NumPy multiplies them all


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor lies; ``begin`` and ``end`` count bytes from the start of the file."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile(Mapping[str, Array]):
    """The tensors of one file as read-only views of its mapping: name -> array.

    The mapping lives as long as any array of it. Replace weight files, never write to them: see
    ``MappedFile``, which is ``file``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = MappedFile(path, _LENGTH_BYTES)
        self._mapping = self.file.mapping
        self.metadata: dict[str, str] = {}
        self.entries = self._read_header(self.file.size)

    def __getitem__(self, name: str) -> Array:
        entry = self.entries[name]
        array: Array = np.ndarray(entry.shape, entry.dtype, self._mapping, entry.begin)
        # The format aligns nothing: behind a header of an odd length numbers begin at odd bytes,
        # where C++ may not read them.
        return array if array.flags.aligned else array.copy()

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def _check(self, holds: bool, message: str) -> None:
        if not holds:
            self._fail(message)

    def _fail(self, message: str) -> NoReturn:
        raise CheckpointError(f"{self.path}: {message}; download or write the file again")

    def _read_header(self, size: int) -> dict[str, Entry]:
        length = int.from_bytes(self._mapping[:_LENGTH_BYTES], "little")
        limit = min(MAX_HEADER_BYTES, size - _LENGTH_BYTES)
        self._check(length <= limit, f"expected a header of at most {limit} bytes, got {length}")
        data = _LENGTH_BYTES + length
        header = self._parse_header(self._mapping[_LENGTH_BYTES:data])
        notes = self.metadata = header.pop("__metadata__", {})
        plain = isinstance(notes, dict) and all(isinstance(text, str) for text in notes.values())
        self._check(plain, "expected __metadata__ to map names to strings")
        entries = [self._parse_entry(name, raw, data, size) for name, raw in header.items()]
        self._check_cover(entries, data, size)
        return {entry.name: entry for entry in entries}

    def _parse_header(self, text: bytes) -> dict[str, Any]:
        def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            found = dict(pairs)
            if len(found) != len(pairs):
                raise ValueError("a name occurs twice")
            return found

        def no_constant(name: str) -> NoReturn:
            raise ValueError(f"{name} is not JSON")

        try:
            said = text.decode("utf-8")
            check_parts(said)
            header = json.loads(said, object_pairs_hook=unique, parse_constant=no_constant)
        except (ValueError, RecursionError) as error:
            self._fail(f"the header is not valid JSON: {error}")
        self._check(isinstance(header, dict), "expected a JSON object as header")
        found: dict[str, Any] = header
        return found

    def _parse_entry(self, name: str, raw: Any, data: int, size: int) -> Entry:
        at = f"tensor {name!r}: "
        keys = {"dtype", "shape", "data_offsets"}
        self._check(
            isinstance(raw, dict) and raw.keys() == keys,
            f"{at}expected the fields dtype, shape and data_offsets",
        )
        dtype = DTYPES.get(raw["dtype"]) if isinstance(raw["dtype"], str) else None
        if dtype is None:
            self._fail(f"{at}expected a dtype among {', '.join(DTYPES)}, got {raw['dtype']!r}")
        shape = _sizes(raw["shape"])
        if shape is None or len(shape) > MAX_RANK or prod(max(n, 1) for n in shape) > MAX_ELEMENTS:
            self._fail(
                f"{at}expected a shape of at most {MAX_RANK} sizes, got {_short(raw['shape'])}"
            )
        offsets = _sizes(raw["data_offsets"])
        if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
            self._fail(f"{at}expected data_offsets [begin, end], got {_short(raw['data_offsets'])}")
        begin, end = offsets
        self._check(
            data + end <= size,
            f"{at}its data ends at byte {data + end}, the file at {size}; the file is truncated",
        )
        expected = prod(shape) * dtype.itemsize
        self._check(
            end - begin == expected,
            f"{at}expected {expected} bytes for shape {list(shape)} of {raw['dtype']}, "
            f"got {end - begin}",
        )
        return Entry(name, dtype, shape, data + begin, data + end)

    def _check_cover(self, entries: list[Entry], data: int, size: int) -> None:
        """Check that the tensors cover the data once: else one may read another's bytes."""
        at, before = data, "the header"
        for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
            self._check(
                entry.begin >= at,
                f"tensor {entry.name!r} overlaps {before}: it begins at byte {entry.begin}, "
                f"before byte {at}",
            )
            self._check(
                entry.begin == at,
                f"bytes {at} to {entry.begin}, before tensor {entry.name!r}, belong to no tensor",
            )
            at, before = entry.end, f"tensor {entry.name!r}"
        self._check(
            at == size, f"expected the file to end at byte {at}, after its tensors, got {size}"
        )


@dataclass(frozen=True, slots=True)
class PendingTensor:
    """A tensor that is made when its turn to be written comes: one is in memory at a time."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    make: Callable[[], Array]

    @property
    def nbytes(self) -> int:
        """Size in the file."""
        return prod(self.shape) * self.dtype.itemsize


def as_pending(tensor: "tuple[str, Array] | PendingTensor") -> PendingTensor:
    """Return a tensor that is there already in the form of one that is not."""
    if isinstance(tensor, PendingTensor):
        return tensor
    name, array = tensor
    return PendingTensor(name, array.dtype, array.shape, lambda: array)


def write_safetensors(path: Path, tensors: Iterable[tuple[str, Array] | PendingTensor]) -> None:
    """Write tensors to a file, without a second copy in memory; pending ones are made in turn.

    The header is padded so that the data begins on a 64-byte boundary of the file, and so of a
    mapping; the widest dtypes come first, so that every tensor is aligned to its elements.
    """
    pending = [as_pending(tensor) for tensor in tensors]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begins: dict[str, int] = {}
    at = 0
    for tensor in sorted(pending, key=lambda tensor: -tensor.dtype.itemsize):
        begins[tensor.name], end = at, at + tensor.nbytes
        header[tensor.name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        # In the order given, not that of the file: a matrix's codes and scales are made together.
        for tensor in pending:
            array = tensor.make()
            assert (array.dtype, array.shape) == (tensor.dtype, tensor.shape), tensor.name
            file.seek(8 + len(text) + begins[tensor.name])
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _sizes(raw: Any) -> tuple[int, ...] | None:
    """Return a list of non-negative integers as a tuple, or None if it is something else."""
    if not isinstance(raw, list) or not all(type(n) is int and n >= 0 for n in raw):
        return None
    return tuple(raw)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
