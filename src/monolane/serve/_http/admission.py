"""Connections take turns at the event loop: in one turn of it one request begins, or one client's
leaving is dealt with.

Each costs the loop's thread a few milliseconds in all, with the threads that it wakes. When many
clients come or leave at one moment, whoever comes in their midst would wait for all of them: each
stage of his request would stand behind that stage of all others.

Of requests that have come and wait, the one that asks for fewest tokens begins first, by what the
first bytes of its body say. Nobody is overtaken by more than twice as many as waited when he came,
and some more.

What has begun takes time for a while yet: a prompt is prepared, read, and answered by a first
token, each with a turn of the loop and with a thread. So where short requests come, the loop rests
between two of the others for several times as long as the last one took, and is idle for the short.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

# What is not said is as much as a model may draw. In a text inside JSON a backslash stands before
# the quotation mark behind the name, so that such a text is not taken for a field.
_WANTED = re.compile(
    rb'"(?:max_tokens|max_completion_tokens|max_output_tokens|n_predict)"\s*:\s*(\d{1,9})[\s,}]'
)
_UNKNOWN = 1 << 30
_READ_BYTES = 16 << 10  # of what has come, in which the field is looked for
_TIMES, _MORE = 2, 16  # who waits is overtaken by so many times those before him, and some more
_SHORT = 64  # tokens that a short request asks for at most
# Between two of the others' turns, in lengths of the turn of the loop that was the first's; and the
# longest, so that what else makes turns long does not keep the others out.
_REST = 5.0
_LONGEST_REST = 0.02  # seconds
_SHORT_SECONDS = 1.0  # since the last short request: then there may be more, and the loop rests


class Connection(Protocol):
    """What takes turns here."""

    def read_on(self) -> None:
        """Read what has come, which begins a request."""

    def leave(self) -> None:
        """Deal with a client who has left."""


class _Waiting:
    __slots__ = ("connection", "due", "wanted")

    def __init__(self, connection: Connection, wanted: int, due: int) -> None:
        self.connection, self.wanted, self.due = connection, wanted, due

    @property
    def is_short(self) -> bool:
        return self.wanted <= _SHORT


class Admission:
    """Who begins and who is left off in this turn of the loop; for all connections of a server."""

    def __init__(self, rest: float = _REST, clock: Callable[[], float] = time.monotonic) -> None:
        """``rest``: between two turns of others than short requests, in lengths of the first."""
        self._rest, self._clock = rest, clock
        self._coming: list[_Waiting] = []  # in the order of their coming
        self._leaving: deque[Connection] = deque()
        self._begun = 0  # requests, since the start
        self._began_at: float | None = None  # that turn, where it is this one
        self._short_until = 0.0  # the clock's time until which short requests are expected
        self._timer: asyncio.TimerHandle | None = None  # until the others' next turn may come
        self._busy = False  # one has begun or left in this turn of the loop

    def come(self, connection: Connection, data: bytes) -> bool:
        """Begin a request whose first bytes these are, or have it wait; tell whether it waits."""
        due = self._begun + _TIMES * len(self._coming) + _MORE
        one = _Waiting(connection, wanted_tokens(data), due)
        if one.wanted and one.is_short:
            self._short_until = self._clock() + _SHORT_SECONDS
        if not self._busy and (one.is_short or (not self._coming and self._timer is None)):
            self._begin(one)
            return False
        self._coming.append(one)
        return True

    def go(self, connection: Connection) -> None:
        """Deal with a client who has left amid an answer, now or in a later turn."""
        if self._busy or self._leaving or self._timer is not None:
            self._leaving.append(connection)
        else:
            self._leave(connection)

    def forget(self, connection: Connection) -> None:
        """Drop the request of a client who has left, which begins no more."""
        self._coming = [one for one in self._coming if one.connection is not connection]

    def _begin(self, one: _Waiting) -> None:
        self._begun += 1
        self._take_turn(rests=not one.is_short)
        one.connection.read_on()

    def _leave(self, connection: Connection) -> None:
        self._take_turn(rests=True)
        connection.leave()

    def _take_turn(self, *, rests: bool) -> None:
        """Look again in the next turn of the loop; ``rests``: it is not a short request's."""
        if rests:
            self._began_at = self._clock()
        if not self._busy:
            self._busy = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """A turn of the loop is over: begin the next request, or let the next client leave."""
        self._busy = False
        if self._began_at is not None:
            now = self._clock()
            length, self._began_at = now - self._began_at, None
            if self._timer is not None:  # of the turn before one who had waited for too long
                self._timer.cancel()
                self._timer = None
            rest = min(self._rest * length, _LONGEST_REST)
            if rest and now < self._short_until:
                self._timer = asyncio.get_running_loop().call_later(rest, self._wake)
        self._go_on()

    def _wake(self) -> None:
        self._timer = None
        if not self._busy:
            self._go_on()

    def _go_on(self) -> None:
        """Begin a short request; and where the loop has rested, let the others have a turn."""
        first = self._first()
        if first is not None and (first.is_short or self._begun > first.due):
            self._coming.remove(first)
            self._begin(first)
            first = None
        if self._timer is not None:
            return
        if self._leaving:  # first: a slot is free then, and so many as have begun can leave at most
            self._leave(self._leaving.popleft())
        elif first is not None:
            self._coming.remove(first)
            self._begin(first)

    def _first(self) -> _Waiting | None:
        """Return who begins next."""
        if not self._coming or self._begun > self._coming[0].due:
            return self._coming[0] if self._coming else None
        return min(self._coming, key=lambda one: one.wanted)


def wanted_tokens(data: bytes) -> int:
    """Return how many tokens a request asks for, as far as its first bytes tell."""
    if data.startswith((b"GET ", b"HEAD ", b"OPTIONS ")):
        return 0
    found = _WANTED.search(data[:_READ_BYTES])
    return int(found[1]) if found else _UNKNOWN
