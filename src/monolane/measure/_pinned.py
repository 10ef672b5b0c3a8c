"""Threads that do something at the same time, each on a core of its own, as the executor's do."""

import os
import threading
import time
from collections.abc import Callable, Sequence

from monolane._processor import read_processor


class PinnedThreads:
    """As many as decode has workers, pinned where those are."""

    def __init__(self, workers: int) -> None:
        self._cores: Sequence[int | None] = read_processor().place(workers) or [None] * workers

    @property
    def count(self) -> int:
        """How many threads."""
        return len(self._cores)

    def run(self, action: Callable[[int], object]) -> float:
        """Call it with each thread's index, together; return the seconds from first to last."""
        together = threading.Barrier(self.count)
        spans = [(0.0, 0.0)] * self.count

        def work(index: int) -> None:
            core = self._cores[index]
            if core is not None:
                os.sched_setaffinity(0, {core})  # on Linux that of the calling thread alone
            together.wait()
            begin = time.perf_counter()
            action(index)
            spans[index] = begin, time.perf_counter()

        threads = [threading.Thread(target=work, args=(i,)) for i in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return max(end for _, end in spans) - min(begin for begin, _ in spans)
