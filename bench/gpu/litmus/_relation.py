"""Relations over a few events, as rows of bits: bit j of row i says that i is related to j."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Relation:
    """Pairs of n events."""

    rows: tuple[int, ...]  # [n]

    @classmethod
    def none(cls, count: int) -> "Relation":
        """Return the empty relation over ``count`` events."""
        return cls((0,) * count)

    @classmethod
    def identity(cls, events: Iterable[int], count: int) -> "Relation":
        """Return what relates each of ``events`` to itself."""
        chosen = set(events)
        return cls(tuple(1 << i if i in chosen else 0 for i in range(count)))

    @classmethod
    def where(cls, holds: Callable[[int, int], bool], count: int) -> "Relation":
        """Return the pairs of which ``holds``."""
        return cls(tuple(sum(1 << j for j in range(count) if holds(i, j)) for i in range(count)))

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]], count: int) -> "Relation":
        """Return these pairs."""
        rows = [0] * count
        for i, j in pairs:
            rows[i] |= 1 << j
        return cls(tuple(rows))

    def __or__(self, other: "Relation") -> "Relation":
        return Relation(tuple(a | b for a, b in zip(self.rows, other.rows, strict=True)))

    def __and__(self, other: "Relation") -> "Relation":
        return Relation(tuple(a & b for a, b in zip(self.rows, other.rows, strict=True)))

    def __sub__(self, other: "Relation") -> "Relation":
        return Relation(tuple(a & ~b for a, b in zip(self.rows, other.rows, strict=True)))

    def __bool__(self) -> bool:
        return any(self.rows)

    def __matmul__(self, other: "Relation") -> "Relation":
        """Return the composition: from i by a pair of this, then by one of the other."""
        return Relation(tuple(_union(row, other.rows) for row in self.rows))

    def pairs(self) -> list[tuple[int, int]]:
        """Return all pairs."""
        count = len(self.rows)
        return [(i, j) for i, row in enumerate(self.rows) for j in range(count) if row >> j & 1]

    def has(self, i: int, j: int) -> bool:
        """Return whether i is related to j."""
        return bool(self.rows[i] >> j & 1)

    def inverse(self) -> "Relation":
        """Return each pair turned round."""
        return Relation.of(((j, i) for i, j in self.pairs()), len(self.rows))

    def within(self, first: int, second: int) -> "Relation":
        """Return the pairs from a set of events to a set of events, each given as bits."""
        return Relation(
            tuple(row & second if first >> i & 1 else 0 for i, row in enumerate(self.rows))
        )

    def optional(self) -> "Relation":
        """Return it with each event related to itself."""
        return Relation(tuple(row | 1 << i for i, row in enumerate(self.rows)))

    def plus(self) -> "Relation":
        """Return the transitive closure."""
        rows = list(self.rows)
        for k in range(len(rows)):
            through = rows[k]
            for i, row in enumerate(rows):
                if row >> k & 1:
                    rows[i] = row | through
        return Relation(tuple(rows))

    def is_irreflexive(self) -> bool:
        """Return whether no event is related to itself."""
        return not any(row >> i & 1 for i, row in enumerate(self.rows))

    def is_acyclic(self) -> bool:
        """Return whether no chain comes back to where it began."""
        left = (1 << len(self.rows)) - 1
        while left:  # who leads to nobody that is left can be in no circle
            ends = sum(
                1 << i for i, row in enumerate(self.rows) if left >> i & 1 and not row & left
            )
            if not ends:
                return False
            left ^= ends
        return True


def _union(bits: int, rows: tuple[int, ...]) -> int:
    found = 0
    while bits:
        lowest = bits & -bits
        found |= rows[lowest.bit_length() - 1]
        bits ^= lowest
    return found
