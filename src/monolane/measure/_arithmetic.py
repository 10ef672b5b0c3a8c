"""What the cores of this machine multiply while memory is not asked: the yardstick of arithmetic.

The cores of a virtual machine change their speed too, by half and for minutes: a neighbour's thread
runs on the same core. The system counts no time as stolen then, and the memory may be as fast as
ever. A speed that arithmetic bounds has to be held against this one.
"""

from monolane._core import kernels
from monolane.measure._pinned import PinnedThreads

_ROUNDS = 1 << 17  # of a pass: about half a millisecond
_PASSES = 5  # of a sample, the best of which counts


class ArithmeticProbe:
    """Threads that multiply and add registers, as many as decode has workers."""

    def __init__(self, workers: int) -> None:
        self._threads = PinnedThreads(workers)
        self._isa = kernels.best()

    def measure(self) -> float:
        """Return the operations/s of all threads, float32, two for a fused multiply-add."""
        return max(self._pass() for _ in range(_PASSES))

    def _pass(self) -> float:
        done = [0] * self._threads.count

        def multiply(index: int) -> None:
            done[index], _ = kernels.multiply_registers(self._isa, _ROUNDS)

        seconds = self._threads.run(multiply)
        return sum(done) / seconds
