"""What a sequence is kept as outside its slot, so that another one may go on from it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Kept:
    """Keys and values of some positions of a sequence, in the bits in which the slot held them.

    rows   uint8 [lists of rows, positions, bytes of a row]: of the layers that hold every position
           of the context
    tail   uint8 [bytes]: of the windowed layers that do not, the positions that the token behind
           the last one sees. None where a model has no such layers, or where they have dropped
           those positions: nothing can go on from there
    """

    rows: Bytes
    tail: Bytes | None = None

    @property
    def positions(self) -> int:
        """How many positions the rows are of."""
        return int(self.rows.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of rows and tail."""
        return self.rows.nbytes + (0 if self.tail is None else self.tail.nbytes)
