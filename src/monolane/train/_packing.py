"""Documents packed end to end into rows of one length, in an order that the seed decides.

A batch is a pure function of (seed, step): a resumed run needs no generator state, and reads
exactly the rows that the uninterrupted run would have read.
"""

from collections.abc import Sequence

import numpy as np

from monolane.errors import TextError
from monolane.train._vocabulary import UNK


class Packing:
    """Rows of ``context`` tokens; every epoch joins and cuts the documents anew.

    Each epoch holds every token once. Its last row is filled up with ``<unk>``, which byte-level
    text never contains, and which the loss leaves out.
    """

    def __init__(self, documents: Sequence[np.ndarray], context: int, seed: int) -> None:
        if not documents:
            raise TextError("expected at least one document to pack, got none")
        self._documents = documents
        self._context = context
        self._seed = seed
        self.tokens = sum(len(document) for document in documents)
        self.rows = -(-self.tokens // context)  # per epoch, rounded up
        self._cached: tuple[int, np.ndarray] | None = None

    def epoch(self, number: int) -> np.ndarray:
        """Return the rows [R, C] of one epoch as uint16."""
        if self._cached is None or self._cached[0] != number:
            self._cached = (number, self._pack(number))
        return self._cached[1]

    def batch(self, step: int, rows: int) -> np.ndarray:
        """Return the ``rows`` rows [B, C] of step ``step``, counted from 0."""
        places = range(step * rows, (step + 1) * rows)
        return np.stack([self.epoch(place // self.rows)[place % self.rows] for place in places])

    def _pack(self, number: int) -> np.ndarray:
        generator = np.random.default_rng((self._seed, number))
        packed = np.full(self.rows * self._context, UNK, dtype=np.uint16)
        order = generator.permutation(len(self._documents))
        packed[: self.tokens] = np.concatenate([self._documents[index] for index in order])
        rows_RC = packed.reshape(self.rows, self._context)
        # Neighbours in a batch should come from different files.
        return rows_RC[generator.permutation(self.rows)]
