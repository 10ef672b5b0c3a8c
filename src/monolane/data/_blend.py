"""A mixture of sources as rows of one length: what training reads, in which order.

A row is a pure function of its number, so there is no state of a reader to save: a run that resumes
at row n, with as many processes as it likes, reads what the uninterrupted run would have read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from monolane.data._corpus import Corpus
from monolane.data._interleave import Turns
from monolane.data._stream import Place, Stream
from monolane.errors import ConfigError, DataError

IGNORED = -100  # the target that torch's cross-entropy leaves out unless told otherwise
NO_DOCUMENT = -1
_PADDING_ID = 0  # any id will do, as its target is ignored


@dataclass(frozen=True)
class Rows:
    """R rows of T tokens.

    ``targets`` are the tokens that follow, across the end of a row too; ``IGNORED`` where another
    document follows, or nothing. ``documents`` counts 0, 1, ... from left to right and changes
    where a document begins: a token attends to those of its own number. Padding, at the end of at
    most one row an epoch, has id 0, target ``IGNORED`` and document ``NO_DOCUMENT``.
    """

    ids: np.ndarray  # [R, T] int64
    targets: np.ndarray  # [R, T] int64
    documents: np.ndarray  # [R, T] int32
    sources: np.ndarray  # [R] int64, into ``Blend.sources``

    def __len__(self) -> int:
        return len(self.ids)


class Blend:
    """Rows of ``sequence_length`` tokens from several sources, in the proportions of ``weights``.

    After any number of rows each source has given its share to within one row; see ``shares`` for
    the exact shares. ``after`` says how many rows of a source were read before the blend begins,
    by an earlier stage with the same length and seed: ``blend.before(row)`` of that one.
    ConfigError: a source or weight that cannot be; DataError: a source without tokens.
    """

    def __init__(
        self,
        corpus: Corpus,
        weights: Mapping[str, float],
        sequence_length: int,
        seed: int,
        *,
        after: Mapping[str, int] | None = None,
    ) -> None:
        if sequence_length < 2:
            raise ConfigError(f"sequence_length: expected 2 or more, got {sequence_length}")
        self._turns = Turns(weights)
        self._length = sequence_length
        self._streams = {
            name: Stream(name, corpus.train(name), sequence_length, seed)
            for name in self._turns.shares
        }
        self._after = dict(after or {})
        for name, rows in self._after.items():
            corpus.train(name)  # a name that the corpus lacks is a mistake
            if rows < 0:
                raise ConfigError(f"after: expected rows from 0 on for {name!r}, got {rows}")
        for name, stream in self._streams.items():
            if not stream.rows:
                raise DataError(
                    f"{corpus.folder / name}: expected tokens to train on, got none; "
                    "set the source's weight to 0, or loosen its filters"
                )

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources with a share, in the order of the weights."""
        return tuple(self._streams)

    @property
    def shares(self) -> Mapping[str, Fraction]:
        """The exact share of each source; together one."""
        return self._turns.shares

    def epoch_rows(self, source: str) -> int:
        """Return how many rows one pass over a source takes."""
        return self._streams[source].rows

    def before(self, row: int) -> dict[str, int]:
        """Return how many rows of each source are read before row ``row``, with earlier stages'."""
        counts = dict(self._after)
        for name, rows in self._turns.before(row).items():
            counts[name] = counts.get(name, 0) + rows
        return counts

    def place(self, row: int) -> tuple[str, Place]:
        """Return the source of a row, and where in it the row lies."""
        name, nth = self._turns.at(row)
        return name, self._streams[name].place(self._after.get(name, 0) + nth)

    def rows(self, first: int, count: int, *, rank: int = 0, world: int = 1) -> Rows:
        """Return rows ``first`` to ``first + count``, or those of them that ``rank`` reads.

        The ranks of a world split the rows in order and as evenly as may be.
        """
        if first < 0 or count < 0:
            raise ConfigError(f"rows: expected first and count from 0 on, got {first}, {count}")
        if not 0 <= rank < world:
            raise ConfigError(f"rows: expected 0 <= rank < world, got rank {rank} of {world}")
        numbers = range(first + count * rank // world, first + count * (rank + 1) // world)
        shape = (len(numbers), self._length)
        rows = Rows(
            ids=np.full(shape, _PADDING_ID, dtype=np.int64),
            targets=np.full(shape, IGNORED, dtype=np.int64),
            documents=np.full(shape, NO_DOCUMENT, dtype=np.int32),
            sources=np.zeros(len(numbers), dtype=np.int64),
        )
        for at, number in enumerate(numbers):
            self._fill(rows, at, number)
        return rows

    def _fill(self, rows: Rows, at: int, number: int) -> None:
        name, place = self.place(number)
        ids, begins = self._streams[name].read(place)
        length = place.stop - place.start
        rows.sources[at] = self.sources.index(name)
        rows.ids[at, :length] = ids[:length]
        rows.documents[at, :length] = np.cumsum(begins[:length]) - begins[0]
        rows.targets[at, : len(ids) - 1] = np.where(begins[1:], IGNORED, ids[1:].astype(np.int64))
