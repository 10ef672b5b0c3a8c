"""Cutting rows among workers: contiguous, as even as an alignment allows, each row exactly once."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import heapify, heapreplace
from itertools import accumulate

# Rows that kernels like to take together, and how much more the busiest worker may have for it.
FAVOURED = (8, 4, 2, 1)
EVEN_ENOUGH = 1.02
PERIOD = 2  # layers that share rows out in ways of their own, by turns, where they do


class Scope(IntEnum):
    """Whom a share, an access or a wait concerns."""

    GROUP = 0  # the workers and lanes of the own group
    ALL = 1  # all workers and lanes


@dataclass(frozen=True, slots=True)
class Share:
    """Who does which rows: of each group's own work (GROUP), or of work that there is once (ALL).

    ``bounds[i] .. bounds[i + 1]`` are the rows of the i-th worker of the group, or of worker i.
    """

    scope: Scope
    bounds: tuple[int, ...]

    @property
    def total(self) -> int:
        """Number of rows that are shared out."""
        return self.bounds[-1]

    def of(self, worker: int) -> tuple[int, int]:
        """Return the rows (begin, end) of a worker, whatever its group."""
        i = worker % (len(self.bounds) - 1)
        return self.bounds[i], self.bounds[i + 1]


def split(rows: int, workers: int, align: int = 1, first: int = 0) -> tuple[int, ...]:
    """Return workers + 1 boundaries of contiguous shares of whole blocks of ``align`` rows.

    What is left over after an even division goes, a block each, to the workers from ``first`` on.
    With fewer blocks than workers some shares are empty; the last block may be short.
    """
    assert rows >= 0
    assert workers > 0
    assert align > 0
    blocks = -(-rows // align)
    each, extra = divmod(blocks, workers)
    bounds = [0]
    for worker in range(workers):
        count = each + ((worker - first) % workers < extra)
        bounds.append(min(rows, bounds[-1] + count * align))
    return tuple(bounds)


def level(
    loads: Sequence[int], units: int, load: int, rows_each: int, rows: int
) -> tuple[int, ...]:
    """Return boundaries of contiguous shares of ``units`` of ``rows_each`` rows, the last short.

    One unit after the other goes to the worker that has least, of equals the first; a unit adds
    ``load`` to the ``loads`` so far.
    """
    counts = [0] * len(loads)
    heap = [(x, worker) for worker, x in enumerate(loads)]
    heapify(heap)
    for _ in range(units):
        least, worker = heap[0]
        heapreplace(heap, (least + load, worker))
        counts[worker] += 1
    ends = accumulate(counts, initial=0)
    return tuple(min(rows, end * rows_each) for end in ends)


def choose_align(rows: int, workers: int, minimum: int = 1) -> int:
    """Return the block size: the largest of 8, 4, 2, 1 rows that costs next to no evenness.

    The worker with the most rows makes all others wait, while a ragged end costs a kernel a slow
    tail. Blocks are multiples of ``minimum``, which a cut must never divide.
    """
    sizes = [a for a in FAVOURED if a % minimum == 0 and rows % a == 0] or [minimum]
    largest = {a: -(-rows // (a * workers)) * a for a in sizes}  # share of the busiest worker
    return max(a for a in sizes if largest[a] <= EVEN_ENOUGH * min(largest.values()))
