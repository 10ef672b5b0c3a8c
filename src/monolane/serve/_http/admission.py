"""Connections take turns at the event loop: in one turn of it one request begins, and one client's
leaving is dealt with.

Each costs the loop's thread a few milliseconds in all, with the threads that it wakes. When many
clients come or leave at one moment, whoever comes in their midst would wait for all of them: each
stage of his request would stand behind that stage of all others.

Of requests that have come and wait, the one that asks for fewest tokens begins first, by what the
first bytes of its body say. Nobody is overtaken by more than twice as many as waited when he came,
and some more.
"""

import asyncio
import re
from collections import deque
from typing import Protocol

# What is not said is as much as a model may draw. In a text inside JSON a backslash stands before
# the quotation mark behind the name, so that such a text is not taken for a field.
_WANTED = re.compile(
    rb'"(?:max_tokens|max_completion_tokens|max_output_tokens|n_predict)"\s*:\s*(\d{1,9})[\s,}]'
)
_UNKNOWN = 1 << 30
_READ_BYTES = 16 << 10  # of what has come, in which the field is looked for
_TIMES, _MORE = 2, 16  # who waits is overtaken by so many times those before him, and some more


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


class Admission:
    """Who begins and who is left off in this turn of the loop; for all connections of a server."""

    def __init__(self) -> None:
        self._coming: list[_Waiting] = []  # in the order of their coming
        self._leaving: deque[Connection] = deque()
        self._begun = 0  # requests, since the start
        self._busy = False  # one has begun or left in this turn of the loop

    def come(self, connection: Connection, data: bytes) -> bool:
        """Begin a request whose first bytes these are, or have it wait; tell whether it waits."""
        if not self._busy:
            self._take_turn()
            self._begun += 1
            connection.read_on()
            return False
        due = self._begun + _TIMES * len(self._coming) + _MORE
        self._coming.append(_Waiting(connection, wanted_tokens(data), due))
        return True

    def go(self, connection: Connection) -> None:
        """Deal with a client who has left, now or in a later turn; his request begins no more."""
        self._coming = [one for one in self._coming if one.connection is not connection]
        if self._busy:
            self._leaving.append(connection)
        else:
            self._take_turn()
            connection.leave()

    def _take_turn(self) -> None:
        self._busy = True
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Begin the next request, and let the next client leave."""
        self._busy = False
        if not self._coming and not self._leaving:
            return
        self._take_turn()
        if self._leaving:
            self._leaving.popleft().leave()
        if self._coming:
            first = self._coming[0]
            if self._begun <= first.due:
                first = min(self._coming, key=lambda one: one.wanted)
            self._coming.remove(first)
            self._begun += 1
            first.connection.read_on()


def wanted_tokens(data: bytes) -> int:
    """Return how many tokens a request asks for, as far as its first bytes tell."""
    if data.startswith((b"GET ", b"HEAD ", b"OPTIONS ")):
        return 0
    found = _WANTED.search(data[:_READ_BYTES])
    return int(found[1]) if found else _UNKNOWN
