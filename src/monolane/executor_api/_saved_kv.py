"""What a sequence is kept as outside its slot, so that another one may go on from it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class Kept(ABC):
    """Keys and values of some positions of a sequence, in the bits in which the slot held them.

    Rows are of the layers that hold every position of the context. A tail is of the windowed layers
    that do not, the positions that the token behind the last one sees, and of the layers that have
    states, these as they are behind it. Where a model has no such layers there is none; nor where
    those positions are dropped, or states are of later ones, and then nothing can go on from there.
    Where these bytes lie is the executor's business.
    """

    @property
    @abstractmethod
    def positions(self) -> int:
        """How many positions the rows are of."""

    @property
    @abstractmethod
    def tail_nbytes(self) -> int | None:
        """Bytes of the tail; None where there is none."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of rows and tail."""

    @abstractmethod
    def part(self, begin: int, end: int, tail: "Kept | None" = None) -> "Kept":
        """Return the rows of positions ``begin`` to ``end - 1``, with the tail of another.

        A copy, where it is not all of them: a view would keep all of the rows alive.
        """


@dataclass(frozen=True, slots=True)
class KeptBytes(Kept):
    """The same in arrays of this process.

    rows   uint8 [lists of rows, positions, bytes of a row]
    tail   uint8 [bytes]
    """

    rows: Bytes
    tail: Bytes | None = None

    @property
    def positions(self) -> int:
        """How many positions the rows are of."""
        return int(self.rows.shape[1])

    @property
    def tail_nbytes(self) -> int | None:
        """Bytes of the tail; None where there is none."""
        return None if self.tail is None else self.tail.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of rows and tail."""
        return self.rows.nbytes + (self.tail_nbytes or 0)

    def part(self, begin: int, end: int, tail: Kept | None = None) -> "KeptBytes":
        """Return the rows of positions ``begin`` to ``end - 1``, with the tail of another."""
        whole = (begin, end) == (0, self.positions)
        rows = self.rows if whole else self.rows[:, begin:end].copy()
        return KeptBytes(rows, bytes_of(tail).tail if tail is not None else None)


def bytes_of(kept: Kept) -> KeptBytes:
    """Return what is kept as arrays of this process, which it must be."""
    assert isinstance(kept, KeptBytes), "kept by another executor"
    return kept
