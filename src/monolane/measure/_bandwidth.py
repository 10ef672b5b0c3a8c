"""What the memory of this machine gives to as many threads as decode uses: the yardstick of MBU.

A read by the kernel of the instruction set in use, not a copy (STREAM): decode writes next to
nothing. From anonymous memory in huge pages where the system has them, so this is the limit of the
memory, and the file mapping of the weights pays for its small pages in its MBU.
"""

import numpy as np
import numpy.typing as npt

from monolane._core import kernels
from monolane.measure._pinned import PinnedThreads
from monolane.measure._rounds import Case

_BLOCK = 512  # bytes: what the kernel reads at a time
_PASSES = 5  # of a sample, the best of which counts: an interruption only ever slows one down


class ReadProbe(Case):
    """A buffer far beyond the last-level cache, and pinned threads that each read a part of it."""

    def __init__(self, workers: int, size: int) -> None:
        super().__init__()  # samples: bytes/s
        self._threads = PinnedThreads(workers)
        self._isa = kernels.best()
        rows = max(1, size // _BLOCK // workers)
        self.size = rows * workers * _BLOCK
        self._parts: list[npt.NDArray[np.uint8]] = [
            np.empty((rows, _BLOCK), np.uint8) for _ in range(workers)
        ]
        self._threads.run(lambda index: self._parts[index].fill(1))  # first touched by its reader

    @property
    def workers(self) -> int:
        """Threads that read."""
        return self._threads.count

    def warm_up(self) -> None:
        """Read everything once."""
        self._pass()

    def measure(self) -> float:
        """Return the bytes/s of the best of several passes over the buffer."""
        return max(self._pass() for _ in range(_PASSES))

    def _pass(self) -> float:
        seconds = self._threads.run(lambda index: kernels.read(self._isa, self._parts[index]))
        return self.size / seconds
