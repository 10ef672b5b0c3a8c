"""What several ranks keep of sequences: each its own lanes' part, under a name that rank 0 gives.

Keys and values stay in the memory of the rank that made them, and never cross a link. What is kept
is cut and dropped whenever the engine says so. The ranks do it between epochs, in the same order.
"""

import weakref
from collections import deque
from itertools import count

from monolane._core import Executor as NativeExecutor
from monolane.errors import BackendError
from monolane.executor_api import Kept


class RankKept(Kept):
    """A name of what all ranks keep, and how much that is; they drop it when this goes."""

    def __init__(
        self,
        parts: "RankParts",
        name: int,
        positions: int,
        row_nbytes: int,
        tail_nbytes: int | None,
    ) -> None:
        self.parts, self.name, self.row_nbytes = parts, name, row_nbytes
        self._positions, self._tail_nbytes = positions, tail_nbytes

    @property
    def positions(self) -> int:
        """How many positions the rows are of."""
        return self._positions

    @property
    def tail_nbytes(self) -> int | None:
        """Bytes of the tail, of all ranks; None where there is none."""
        return self._tail_nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of rows and tail, of all ranks."""
        return self._positions * self.row_nbytes + (self._tail_nbytes or 0)

    def part(self, begin: int, end: int, tail: Kept | None = None) -> "RankKept":
        """Return the rows of positions ``begin`` to ``end - 1``, with the tail of another."""
        return self.parts.cut(self, begin, end, tail)


class RankParts:
    """What the ranks of one core keep. It is gone with them."""

    def __init__(self, core: NativeExecutor) -> None:
        self._core: NativeExecutor | None = core
        self._names = count()
        # Cuts (of which name what, from where) and drops (a name) that are still to be done. Any
        # thread may add some, at any time: an object goes when nobody has it any more.
        self._pending: deque[tuple[int, ...]] = deque()

    def save(self, slot: int, begin: int, end: int) -> RankKept:
        """Have all ranks keep their part of these positions of a slot; between epochs."""
        core, name = self._caught_up(), next(self._names)
        row_nbytes, tail_nbytes = core.keep(name, slot, begin, end)
        return self._named(name, end - begin, row_nbytes, tail_nbytes if tail_nbytes >= 0 else None)

    def restore(self, slot: int, kept: Kept, count: int) -> None:
        """Put the first ``count`` positions behind those of a slot; between epochs."""
        if not isinstance(kept, RankKept) or kept.parts is not self:
            raise BackendError(
                "restore: what was kept is gone with a rank that was lost; ask again"
            )
        has_tail = count == kept.positions and kept.tail_nbytes is not None
        self._caught_up().resume(kept.name, slot, count, has_tail)

    def cut(self, kept: RankKept, begin: int, end: int, tail: Kept | None) -> RankKept:
        """Return a copy of a part of what is kept, with the tail of another; at any time."""
        tail_of, tail_nbytes = -1, None
        if isinstance(tail, RankKept) and tail.tail_nbytes is not None:
            tail_of, tail_nbytes = tail.name, tail.tail_nbytes
        name = next(self._names)
        self._pending.append((name, kept.name, begin, end, tail_of))
        return self._named(name, end - begin, kept.row_nbytes, tail_nbytes)

    def end(self) -> None:
        """Let go of the core: its ranks are lost."""
        self._core = None

    def _named(self, name: int, positions: int, row: int, tail: int | None) -> RankKept:
        kept = RankKept(self, name, positions, row, tail)
        weakref.finalize(kept, self._pending.append, (name,)).atexit = False
        return kept

    def _caught_up(self) -> NativeExecutor:
        core = self._core
        if core is None:
            raise BackendError("a rank was lost; ask again")
        while self._pending:
            match self._pending.popleft():
                case (name,):
                    core.drop(name)
                case (name, origin, begin, end, tail):
                    core.cut(name, origin, begin, end, tail)
        return core
