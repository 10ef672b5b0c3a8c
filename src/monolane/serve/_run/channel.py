"""From the threads that decode to the event loop: one buffer for all choices of a request.

A call into the loop per token would be the most expensive part of a token at 3,000 tokens/s. So the
loop is woken only when it waits, and it waits a few milliseconds between two looks. The threads
never wait for it: a client that reads slowly fills its own buffer, and loses its own request.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from monolane.engine import TokenLogprob
from monolane.serve._run.choice import Choice
from monolane.serve._tools.calls import Delta

GAP = 0.005  # seconds between two looks at a busy buffer: a screen shows 60 to 120 pictures/s
# Of so many streams each event may come after ``GAP``. It takes the event loop 0.2 ms, so those of
# 64 would leave it no time for a request that comes.
_STREAMS = 4


def gap(running: int) -> float:
    """Return the seconds between two looks at a busy buffer while so many sequences run."""
    return GAP * max(1.0, running / _STREAMS)


@dataclass(slots=True)
class Update:
    """What is new of a choice: of one piece, of a few milliseconds, or of its whole answer."""

    choice: Choice
    tokens: int = 0
    ids: list[int] = field(default_factory=list)  # of these tokens
    deltas: list[Delta] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    admitted: bool = False  # it has got its turn; its prompt is being read
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None  # with echo, once the prompt is read
    finish_reason: str | None = None

    def add(self, later: "Update") -> None:
        """Take in what came later."""
        self.tokens += later.tokens
        self.ids += later.ids
        self.deltas += later.deltas
        self.logprobs += later.logprobs
        if later.prompt_logprobs is not None:
            self.prompt_logprobs = later.prompt_logprobs
        self.finish_reason = later.finish_reason


class _Flag:
    """An event of the loop that one task waits for, perhaps for a while only.

    With asyncio's own Event and timeout a wait is 30 calls more, at each event of each stream.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake who waits."""
        self._is_set = True
        self._end()

    def clear(self) -> None:
        """Have the next wait until it is set again."""
        self._is_set = False

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until it is set, for so many seconds at most."""
        if self._is_set or (seconds is not None and seconds <= 0):
            return
        self._waiter = self._loop.create_future()
        timer = None if seconds is None else self._loop.call_later(seconds, self._end)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _end(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Channel:
    """A buffer of at most ``limit`` tokens (None: of any), read on the event loop that made it."""

    def __init__(self, limit: int | None, running: Callable[[], int] = lambda: 1) -> None:
        """``running`` tells how many sequences run now."""
        self.limit = limit  # None: nobody reads before the end
        self._running = running
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()  # of the next four
        self._updates: dict[int, Update] = {}  # by the choice's index
        self._tokens = 0  # in the buffer
        self._begun: set[int] = set()  # choices whose first token has come
        self._asleep = False  # the reader waits for _some
        self._some = _Flag()
        self._hurry = _Flag()  # a first token, or the end: not to be kept for a moment
        self._looked = 0.0  # time.monotonic() when the reader last took tokens
        self.closed = False

    def put(self, new: Update) -> bool:
        """Add an update, from any thread; False when the buffer is full and it was not added."""
        count, index = new.tokens, new.choice.index
        with self._lock:
            if self.limit is not None and count and self._tokens + count > self.limit:
                return False
            self._tokens += count
            if index in self._updates:
                self._updates[index].add(new)
            else:
                self._updates[index] = new
            first = count > 0 and self.limit is not None and index not in self._begun
            if first:
                self._begun.add(index)
            wake, self._asleep = self._asleep, False
        if first:
            self._loop.call_soon_threadsafe(self._rouse)
        elif wake:
            self._loop.call_soon_threadsafe(self._some.set)
        return True

    def close(self) -> None:
        """Say, on the event loop, that nothing more comes."""
        self.closed = True
        self._rouse()

    async def wait(self, seconds: float) -> None:
        """Wait until there is something to take, or the end, or for so many seconds."""
        with self._lock:
            if self._updates or self.closed:
                self._some.set()
            else:
                self._some.clear()
                self._asleep = True
        await self._some.wait(seconds)
        await self._hurry.wait(self._looked + gap(self._running()) - time.monotonic())

    async def wait_closed(self) -> None:
        """Wait for the end."""
        while not self.closed:
            self._hurry.clear()
            await self._hurry.wait()

    def take(self) -> list[Update]:
        """Return what is new of each choice that has something, in the order of the choices."""
        self._hurry.clear()
        with self._lock:
            updates, self._updates = self._updates, {}
            if self._tokens:
                self._looked = time.monotonic()
            self._tokens = 0
        return [updates[index] for index in sorted(updates)]

    def _rouse(self) -> None:
        self._some.set()
        self._hurry.set()
