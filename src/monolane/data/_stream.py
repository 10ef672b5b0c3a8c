"""One source as rows without end: epoch after epoch, each in an order of its own.

In an epoch the documents lie end to end, as preparation shuffled them, and are cut into rows. Where
the cutting begins differs from epoch to epoch, so that a document is not cut at the same places
each time. The last row of an epoch is filled up and the rest of it ignored. The alternative, to go
on with the next epoch's first tokens in the same row, would save less than a row an epoch, and an
epoch would no longer be an order of whole rows.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from monolane.data._permutation import Permutation
from monolane.data._tokens import TokenFiles


@dataclass(frozen=True)
class Place:
    """Where a row of a source comes from: tokens [start, stop) of its epoch, turned by ``turn``.

    Token t of the epoch is token (turn + t) modulo ``tokens`` of the source.
    """

    epoch: int
    start: int
    stop: int
    turn: int


class Stream:
    """The rows of one source; ``rows`` of ``length`` tokens make an epoch."""

    def __init__(self, name: str, files: TokenFiles, length: int, seed: int) -> None:
        self.files = files
        self.rows = -(-files.tokens // length)
        self._name = name
        self._length = length
        self._seed = seed

    def place(self, row: int) -> Place:
        """Return where row ``row`` of the source, counted over all epochs, comes from."""
        epoch, nth = divmod(row, self.rows)
        key = f"{self._seed}/{self._name}/{epoch}".encode()
        start = Permutation(self.rows, key)[nth] * self._length
        drawn = int.from_bytes(hashlib.sha256(key).digest(), "little")
        stop = min(start + self._length, self.files.tokens)
        return Place(epoch, start, stop, drawn % self.files.tokens)

    def read(self, place: Place) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids [N] of a row and where documents begin, bool [N].

        N is one more than the row holds where the epoch goes on: its last token's target.
        """
        tokens = self.files.tokens
        first = place.start + place.turn
        last = min(place.stop + 1, tokens) + place.turn
        if first < tokens < last:
            parts = [self.files.read(first, tokens), self.files.read(0, last - tokens)]
            ids, begins = (np.concatenate(halves) for halves in zip(*parts, strict=True))
            return ids, begins
        # A row may lie wholly before or wholly behind the place where the source begins again.
        shift = tokens if first >= tokens else 0
        return self.files.read(first - shift, last - shift)
