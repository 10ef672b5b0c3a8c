"""Token files: the ids of documents end to end, memory-mapped, and where each document ends.

The files are datatrove's: ``<stem>.ds`` holds raw little-endian ids, ``<stem>.ds.index`` the end
of every document as uint64, counted in tokens. Its own reader imports torch, and NumPy is enough.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from monolane.errors import DataError

_OPEN_PARTS = 64  # mapped at once; a map holds a file descriptor, and a process has 1,024
ENDS = np.dtype("<u8")


@dataclass(frozen=True)
class Part:
    """A pair of token files: their name below the corpus folder without suffix, and their size.

    ``digest`` is the SHA-256 of the ids and then of the document ends, as hex.
    """

    stem: str
    documents: int
    tokens: int
    digest: str


@dataclass(frozen=True)
class _Mapped:
    ids: np.ndarray  # [tokens] of the corpus's dtype
    ends: np.ndarray  # [documents] uint64, in tokens


class TokenFiles:
    """The tokens of some parts as one sequence; reads touch only what they return.

    DataError on construction: a file is missing or has another size than its part says.
    """

    def __init__(self, folder: Path, parts: Sequence[Part], dtype: np.dtype) -> None:
        self.documents = sum(part.documents for part in parts)
        self.tokens = sum(part.tokens for part in parts)
        self._folder = folder
        self._dtype = dtype
        self._parts = tuple(part for part in parts if part.tokens)
        self._ends = list(accumulate(part.tokens for part in self._parts))  # of parts, in tokens
        self._last = list(accumulate(part.documents for part in self._parts))
        self._mapped: dict[int, _Mapped] = {}
        for part in self._parts:
            self._check(part)

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return TokenFiles, (self._folder, self._parts, self._dtype)

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids [N] from ``start`` to ``stop``, and where documents begin, bool [N]."""
        assert 0 <= start <= stop <= self.tokens
        ids = np.empty(stop - start, dtype=self._dtype)
        begins = np.zeros(stop - start, dtype=np.bool_)
        at = start
        while at < stop:
            index = bisect_right(self._ends, at)
            base = self._ends[index] - self._parts[index].tokens
            until = min(stop, self._ends[index])
            mapped = self._map(index)
            ids[at - start : until - start] = mapped.ids[at - base : until - base]
            begins[_begins(mapped.ends, at - base, until - base) + (base - start)] = True
            at = until
        return ids, begins

    def document(self, number: int) -> np.ndarray:
        """Return the ids [T] of one document."""
        if not 0 <= number < self.documents:
            raise IndexError(number)
        index = bisect_right(self._last, number)
        mapped = self._map(index)
        inside = number - (self._last[index] - self._parts[index].documents)
        first = int(mapped.ends[inside - 1]) if inside else 0
        return mapped.ids[first : int(mapped.ends[inside])]

    def document_at(self, position: int) -> int:
        """Return the number of the document that holds the token at ``position``."""
        assert 0 <= position < self.tokens
        index = bisect_right(self._ends, position)
        part = self._parts[index]
        inside = _search(self._map(index).ends, position - (self._ends[index] - part.tokens) + 1)
        return self._last[index] - part.documents + inside

    def lengths(self) -> np.ndarray:
        """Return the tokens of every document, int64 [documents]; reads the whole index."""
        ends = [
            np.diff(self._map(index).ends, prepend=ENDS.type(0))
            for index in range(len(self._parts))
        ]
        return np.concatenate(ends).astype(np.int64) if ends else np.zeros(0, dtype=np.int64)

    def _map(self, index: int) -> _Mapped:
        mapped = self._mapped.get(index)
        if mapped is None:
            if len(self._mapped) >= _OPEN_PARTS:
                self._mapped.pop(next(iter(self._mapped)))
            part = self._parts[index]
            ids, ends = self._paths(part)
            mapped = _Mapped(
                np.memmap(ids, dtype=self._dtype, mode="r", shape=(part.tokens,)),
                np.memmap(ends, dtype=ENDS, mode="r", shape=(part.documents,)),
            )
            self._mapped[index] = mapped
        return mapped

    def _paths(self, part: Part) -> tuple[Path, Path]:
        ids = self._folder / f"{part.stem}.ds"
        return ids, ids.with_name(f"{ids.name}.index")

    def _check(self, part: Part) -> None:
        ids, ends = self._paths(part)
        for path, expected in (
            (ids, part.tokens * self._dtype.itemsize),
            (ends, part.documents * ENDS.itemsize),
        ):
            got = path.stat().st_size if path.is_file() else None
            if got != expected:
                found = "no file" if got is None else f"{got:,} bytes"
                raise DataError(
                    f"{path}: expected {expected:,} bytes, got {found}; "
                    "copy the corpus again, or prepare it anew"
                )


def _begins(ends: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Return where documents begin in [start, stop) of a part, int64 [B], counted in the part."""
    inner = ends[_search(ends, start) : _search(ends, stop)].astype(np.int64)
    # The part's first document begins where no other ends.
    return np.concatenate(([0], inner)) if start == 0 else inner


def _search(ends: np.ndarray, value: int) -> int:
    """Return how many documents end before ``value``."""
    # A needle of another type makes NumPy copy the whole index, which may be gigabytes.
    return int(np.searchsorted(ends, ENDS.type(value), side="left"))
