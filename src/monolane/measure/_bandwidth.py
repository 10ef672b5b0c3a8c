"""What the memory of this machine gives to as many threads as decode uses: the yardstick of MBU.

A read by the kernel of the instruction set in use, not a copy (STREAM): decode writes next to
nothing. From anonymous memory in huge pages where the system has them, so this is the limit of the
memory, and the file mapping of the weights pays for its small pages in its MBU.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from monolane._core import kernels
from monolane.measure._rounds import Case

Action = Callable[[npt.NDArray[np.uint8]], object]

_BLOCK = 512  # bytes: what the kernel reads at a time
_PASSES = 5  # of a sample, the best of which counts: an interruption only ever slows one down


class ReadProbe(Case):
    """A buffer far beyond the last-level cache, and pinned threads that each read a part of it."""

    def __init__(self, workers: int, size: int) -> None:
        super().__init__()  # samples: bytes/s
        cores = sorted(os.sched_getaffinity(0))
        pinned = workers <= len(cores)  # as the executor does it
        self._cores: Sequence[int | None] = cores[:workers] if pinned else [None] * workers
        self._isa = kernels.best()
        rows = max(1, size // _BLOCK // workers)
        self.size = rows * workers * _BLOCK
        self._parts: list[npt.NDArray[np.uint8]] = [
            np.empty((rows, _BLOCK), np.uint8) for _ in range(workers)
        ]
        self._in_parallel(lambda part: part.fill(1))  # first touched by its reader

    @property
    def workers(self) -> int:
        """Threads that read."""
        return len(self._parts)

    def warm_up(self) -> None:
        """Read everything once."""
        self._pass()

    def measure(self) -> float:
        """Return the bytes/s of the best of several passes over the buffer."""
        return max(self._pass() for _ in range(_PASSES))

    def _pass(self) -> float:
        spans = self._in_parallel(lambda part: kernels.read(self._isa, part))
        seconds = max(end for _, end in spans) - min(begin for begin, _ in spans)
        return self.size / seconds

    def _in_parallel(self, action: Action) -> list[tuple[float, float]]:
        """Do something to each part on a thread of its own; return when each began and ended."""
        together = threading.Barrier(self.workers)
        spans = [(0.0, 0.0)] * self.workers

        def work(index: int) -> None:
            core = self._cores[index]
            if core is not None:
                os.sched_setaffinity(0, {core})  # on Linux that of the calling thread alone
            together.wait()
            begin = time.perf_counter()
            action(self._parts[index])
            spans[index] = begin, time.perf_counter()

        threads = [threading.Thread(target=work, args=(i,)) for i in range(self.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return spans
