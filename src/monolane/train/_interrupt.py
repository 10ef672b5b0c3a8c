"""Signals that ask to stop as a flag, so that no step is cut in half."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def deferred_interrupt(*more: signal.Signals) -> Iterator[Callable[[], int]]:
    """Give a function that returns the last such signal since the start, or 0.

    These are SIGINT, SIGTERM and ``more``.
    """
    asked = 0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = number

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # no other may install handlers
        numbers = (signal.SIGINT, signal.SIGTERM, *more)
        before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
