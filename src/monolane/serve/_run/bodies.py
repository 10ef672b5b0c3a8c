"""Bodies that have come, until what they ask for is known: bounded in all, whoever sends them.

Without a bound, clients that each send a body of the size that is allowed fill the memory. Where
there is no room, the sender who holds most is refused, and of its bodies the largest: so a body of
usual size finds a place beside any number of large ones.
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType

from monolane.serve._errors import ApiError
from monolane.serve._run.fair_queue import NOBODY, Sender

ROOM = 64 << 20  # bytes of all bodies


class Body:
    """One body; a context manager that lets go of it."""

    def __init__(self, bodies: "Bodies | None" = None, sender: Sender = NOBODY) -> None:
        """Begin with nothing; ``add`` what comes."""
        self.sender, self.size = sender, 0
        self.costly = False  # it asks for more work than its size tells
        self.order = next(_orders)
        # Has whoever reads or prepares it give it up; tells whether that could still be done.
        self.give_up: Callable[[], bool] | None = None
        self._bodies = bodies
        self._data = bytearray()

    def __enter__(self) -> "Body":
        return self

    def __exit__(self, *error: object) -> None:
        self.free()

    def add(self, part: bytes) -> None:
        """Take in what has come; other bodies may be refused for it, or this one."""
        self._data += part
        self.size += len(part)
        if self._bodies is not None:
            self._bodies.count(self, len(part))

    def mentions(self, what: "re.Pattern[bytes]") -> bool:
        """Tell whether the data has a match."""
        return what.search(self._data) is not None

    def take(self) -> bytes:
        """Return all that has come, which is not held here any more; from any thread."""
        data, self._data = bytes(self._data), bytearray()
        return data

    def free(self) -> None:
        """Let go of the data, and count it no more; harmless when that is done."""
        self._data = bytearray()
        if self._bodies is not None:
            self._bodies.forget(self)
            self._bodies = None


_orders = itertools.count()


class Bodies:
    """All bodies of a server; used by the event loop alone."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._held: dict[Body, int] = {}
        self.total = 0

    def count(self, body: Body, size: int) -> None:
        """Count what has come of a body, and have others given up while there is no room."""
        self._held[body] = self._held.get(body, 0) + size
        self.total += size
        if self.total <= self._room:
            return
        shares = Counter[object]()
        for other, held in self._held.items():
            shares[other.sender.group] += held
        order = lambda b: (shares[b.sender.group], self._held[b], b.order)  # noqa: E731
        for other in sorted(self._held, key=order, reverse=True):
            if self.total <= self._room:
                return
            if other.give_up is not None and other.give_up():
                self.forget(other)

    def forget(self, body: Body) -> None:
        """Count a body no more."""
        self.total -= self._held.pop(body, 0)

    def refused(self, headers: Mapping[str, str] = MappingProxyType({})) -> ApiError:
        """Return the error of a body that was given up."""
        return ApiError(
            429,
            f"expected bodies of at most {self._room} bytes in all, of those that are being read; "
            "there are more; send the request again in 1 s, or a shorter one",
            headers={"Retry-After": "1", **headers},
        )
