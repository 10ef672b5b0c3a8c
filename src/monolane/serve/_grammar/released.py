"""Steps of a grammar that are worked out while other threads of Python run.

llguidance keeps the GIL for what it does with one matcher, and releases it for two at a time, which
it gives to threads of its own. So a step that takes long is asked for beside one of a matcher that
has nothing to do. Its processor time is read from the clock of the library's thread. Where several
answers have such steps, that thread rests as long as it has worked: dozens of them would else keep
half a processor busy without end. (A lower priority is no better: others wait for a thread that
stands still with a lock of the allocator or of the kernel.)
"""

import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import llguidance
import numpy as np
import numpy.typing as npt

NO_TOKEN = (1 << 32) - 2  # which no matcher takes
_TASKS = Path("/proc/self/task")


class Released:
    """One thread of the library's, which does one thing at a time.

    ``idle`` is always a matcher of the same vocabulary that ended with an error. Each method says
    how many seconds of processor time it took.
    """

    def __init__(self, rest: Callable[[float], None] = time.sleep) -> None:
        self._rest = rest
        self._lock = threading.Lock()
        self._waiting: set[int] = set()  # threads that want the lock
        before = _threads()
        self._executor = llguidance.LLExecutor(1)
        # Others may begin at the same time: the first work tells which one it is.
        self._candidates = sorted(_threads() - before)

    @property
    def is_timed(self) -> bool:
        """Whether the thread's time can be read; else nobody may use it, who would do so unseen."""
        return bool(self._candidates)

    def consume(
        self, matcher: llguidance.LLMatcher, idle: llguidance.LLMatcher, token: int
    ) -> float:
        """Let a matcher go on by a token."""
        return self._timed(
            lambda: self._executor.consume_token_par([(matcher, token), (idle, NO_TOKEN)])
        )

    def mask(
        self, matcher: llguidance.LLMatcher, idle: llguidance.LLMatcher, words: int
    ) -> tuple[npt.NDArray[np.uint32], float]:
        """Return the tokens that a matcher takes, as bits [words]."""
        masks = np.zeros((2, words), np.uint32)
        address, size = masks.ctypes.data, words * masks.itemsize
        seconds = self._timed(
            lambda: self._executor.unsafe_compute_mask_ptr(
                [(matcher, 0), (idle, 1)], address, size, len(masks)
            )
        )
        return masks[0], seconds

    def _timed(self, work: Callable[[], object]) -> float:
        self._waiting.add(threading.get_ident())
        with self._lock:
            self._waiting.discard(threading.get_ident())
            begun = [_seconds(thread) for thread in self._candidates]
            work()
            took = [_seconds(t) - s for t, s in zip(self._candidates, begun, strict=True)]
            busiest = max(took)
            self._candidates = [self._candidates[took.index(busiest)]]
            if self._waiting:
                self._rest(busiest)
        return busiest


@cache
def released() -> Released:
    """Return the thread; the first call starts it."""
    return Released()


def _threads() -> set[int]:
    try:
        return {int(path.name) for path in _TASKS.iterdir()}
    except OSError:
        return set()


def _seconds(thread: int) -> float:
    """Return the processor time of a thread of this process, by Linux's number of its clock.

    0 of one that has ended.
    """
    try:
        return time.clock_gettime(~thread << 3 | 6)
    except OSError:
        return 0.0
