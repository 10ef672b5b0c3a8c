"""One thread that takes what all running answers have drawn, while their own threads sleep.

Tokens gather for a moment, as no client sees one before its next event. If each answer's thread
woke for them, 63 would in the time of two tokens, each for a lock that all want and for the GIL.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from monolane.engine import Piece, Stream

_LEAST_REST = 0.002  # seconds: what is due by then is taken together


@dataclass(slots=True, eq=False)
class _Followed:
    """An answer whose thread sleeps until its end."""

    stream: Stream
    take: Callable[[Piece], float]
    due: float  # time.monotonic() of the next look
    lock: threading.Lock = field(default_factory=threading.Lock)  # of who makes its pieces
    over: bool = False  # its own thread goes on
    error: BaseException | None = None  # and raises this


class OutputThread:
    """Takes the pieces of answers that let tokens gather; for any thread."""

    def __init__(self, gather: Callable[[], None]) -> None:
        """``gather`` hands out what the executor has drawn, without a wait."""
        self._gather = gather
        self._changed = threading.Condition()  # of the next three
        self._followed: list[_Followed] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    def follow(self, stream: Stream, seconds: float, take: Callable[[Piece], float]) -> None:
        """Sleep until a stream is at its end, or has to be waited for; on its own thread.

        Its pieces are given to ``take`` meanwhile, the first in so many ``seconds``; ``take``
        returns the seconds until the next, 0 where its thread is to wait for that itself.
        """
        one = _Followed(stream, take, time.monotonic() + seconds)
        with self._changed:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="output", daemon=True)
                self._thread.start()
            self._followed.append(one)
            self._changed.notify()
        try:
            stream.await_end(lambda: one.over)
        finally:
            with one.lock:
                one.over = True
            with self._changed:
                self._followed.remove(one)
        if one.error is not None:
            raise one.error

    def close(self) -> None:
        """End the thread, once no answer is followed any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while due := self._await_due():
            try:
                self._gather()
            except Exception:  # each finds out itself what is wrong
                for one in due:
                    self._hand_back(one)
                continue
            for one in due:
                self._look(one)

    def _await_due(self) -> list[_Followed]:
        """Wait for answers that are due, and return them; none once the thread is to end."""
        with self._changed:
            while True:
                now = time.monotonic()
                due = [one for one in self._followed if one.due <= now and not one.over]
                if due or self._closed:
                    return due
                moments = [one.due for one in self._followed if not one.over]
                self._changed.wait(max(min(moments) - now, _LEAST_REST) if moments else None)

    def _look(self, one: _Followed) -> None:
        with one.lock:
            if one.over:
                return
            try:
                rest = _LEAST_REST
                if (piece := one.stream.gather()) is not None:
                    rest = one.take(piece)
                    one.over = rest == 0
                elif one.stream.is_ending:
                    one.over = True
            except Exception as error:
                one.error, one.over = error, True
            one.due = time.monotonic() + rest
        if one.over:
            one.stream.wake()

    def _hand_back(self, one: _Followed) -> None:
        with one.lock:
            one.over = True
        one.stream.wake()
