"""SIGINT and SIGTERM as a flag, so that no step is cut in half."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Give a function that says whether the process was asked to stop since the start."""
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag.is_set  # only the main thread may install handlers
        return

    def raise_flag(number: int, frame: FrameType | None) -> None:
        flag.set()

    before: dict[int, Any] = {
        number: signal.signal(number, raise_flag) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield flag.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
