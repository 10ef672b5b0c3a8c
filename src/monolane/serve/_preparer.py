"""Threads for what takes time before an answer can begin."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from monolane.serve._errors import ApiError

T = TypeVar("T")

_THREADS = 2
_WAITING = 64  # requests that may wait for a thread


class Preparer:
    """A small pool; ``run`` does something on it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="prepare")
        self._pending = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns; ApiError 429 where too many wait already."""
        if self._pending >= _WAITING:
            raise ApiError(
                429,
                f"{self._pending} requests wait to be read; try again in 1 s",
                headers={"Retry-After": "1"},
            )
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._pending -= 1

    def close(self) -> None:
        """End the threads once they have done what they are at."""
        self._pool.shutdown(wait=False, cancel_futures=True)
