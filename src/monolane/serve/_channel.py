"""From the threads that decode to the event loop: one buffer for all choices of a request.

A call into the loop per token would be the most expensive part of a token at 3,000 tokens/s, so the
loop is woken only when it waits, and it waits a few milliseconds between two looks. The threads
never wait for it: a client that reads slowly fills its own buffer, and loses its own request.
"""

import asyncio
import threading
import time
from collections import deque
from dataclasses import dataclass

from monolane.engine import FinishReason, TokenLogprob
from monolane.serve._delta import Delta

GAP = 0.005  # seconds between two looks at a busy buffer: a screen shows 60 to 120 pictures/s


@dataclass(frozen=True, slots=True)
class Part:
    """What a piece of an answer adds to its choice."""

    index: int
    delta: Delta
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason | None = None
    called: bool = False  # with the finish_reason: there were tool calls


@dataclass(frozen=True, slots=True)
class Admitted:
    """A choice has got its turn; its prompt is being read."""

    index: int


@dataclass(frozen=True, slots=True)
class Scored:
    """A choice's prompt has been read; its log-probabilities, behind its first token, if wanted."""

    index: int
    logprobs: tuple[TokenLogprob, ...]


Event = Part | Admitted | Scored


class Channel:
    """A buffer of at most ``limit`` tokens (None: of any), read on the event loop that made it."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()  # of the next four
        self._events: deque[Event] = deque()
        self._tokens = 0  # in the buffer
        self._begun: set[int] = set()  # choices whose first token has come
        self._asleep = False  # the reader waits for _some
        self._some = asyncio.Event()
        self._hurry = asyncio.Event()  # a first token, or the end: not to be kept for a moment
        self._looked = 0.0  # time.monotonic() when the reader last took tokens
        self.closed = False

    def put(self, event: Event) -> bool:
        """Add an event, from any thread; False when the buffer is full and it was not added."""
        count = len(event.token_ids) if isinstance(event, Part) else 0
        with self._lock:
            if self.limit is not None and count and self._tokens + count > self.limit:
                return False
            self._tokens += count
            self._events.append(event)
            first = count > 0 and event.index not in self._begun
            if first:
                self._begun.add(event.index)
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
            if self._events or self.closed:
                self._some.set()
            else:
                self._some.clear()
                self._asleep = True
        await _within(self._some, seconds)
        await _within(self._hurry, self._looked + GAP - time.monotonic())

    async def wait_closed(self) -> None:
        """Wait for the end."""
        while not self.closed:
            self._hurry.clear()
            await self._hurry.wait()

    def take(self) -> list[Event]:
        """Return all events that are there."""
        self._hurry.clear()
        with self._lock:
            events, self._events = list(self._events), deque()
            if self._tokens:
                self._looked = time.monotonic()
            self._tokens = 0
        return events

    def _rouse(self) -> None:
        self._some.set()
        self._hurry.set()


async def _within(event: asyncio.Event, seconds: float) -> None:
    if seconds <= 0 or event.is_set():
        return
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
