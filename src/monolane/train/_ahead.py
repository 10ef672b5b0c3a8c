"""Rows of a run, read while the step before them is computed."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from monolane.data import Rows


class Ahead:
    """Reads the rows of one step ahead, on a thread of its own."""

    def __init__(self, read: Callable[[int], Rows]) -> None:
        """``read`` gives the rows of a step by the number of its first one; on any thread."""
        self._read = read
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rows")
        self._coming: tuple[int, Future[Rows]] | None = None

    def take(self, first: int, then: int | None) -> tuple[Rows, float]:
        """Return the rows from ``first`` on, and how many seconds they were waited for.

        ``then``: the first row of the step behind it, which is begun to be read; None: there is
        none. What reading raises is raised here.
        """
        began = time.monotonic()
        coming, self._coming = self._coming, None
        if coming is not None and coming[0] == first:
            rows = coming[1].result()
        else:  # the first step, or the run went back
            rows = self._read(first)
        waited = time.monotonic() - began
        if then is not None:
            self._coming = then, self._thread.submit(self._read, then)
        return rows, waited

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)
