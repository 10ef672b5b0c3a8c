"""Turns at the engine: at most ``slots`` sequences run, the others wait in a bounded queue.

Only the event loop's thread uses it, so nothing here is locked. It knows sequences, not requests: a
request for several answers asks for a turn for each.
"""

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from monolane.serve._errors import ApiError
from monolane.serve._options import Policy

_LONGEST_RETRY = 60  # the most seconds in Retry-After


class WithdrawnError(Exception):
    """A turn was given up while it was waited for."""


@dataclass(order=True)
class Turn:
    """A place in the queue; ``granted`` is done when the turn has come, or was given up."""

    key: tuple[float, int]
    cost: float = field(compare=False)  # seconds that the sequence is expected to take
    granted: "asyncio.Future[None]" = field(compare=False)

    def withdraw(self) -> None:
        """Give the place up; awaiting ``granted`` then raises WithdrawnError."""
        if not self.granted.done():
            self.granted.set_exception(WithdrawnError())


class Scheduler:
    """Hands out turns by a policy."""

    def __init__(
        self, policy: Policy, queue_limit: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.policy, self.queue_limit = policy, queue_limit
        self._clock = clock
        self.running = 0
        self._queue: list[Turn] = []
        self._order = itertools.count()

    @property
    def waiting(self) -> int:
        """Turns that are waited for."""
        return sum(not turn.granted.done() for turn in self._queue)

    @property
    def places(self) -> int:
        """Turns that may be asked for now: those that are free, and places in the queue."""
        return max(1, self.policy.slots - self.running + self.queue_limit - self.waiting)

    def check_room(self) -> None:
        """Raise the 429 that a new request gets while the queue is full."""
        if self.running >= self.policy.slots and self.waiting >= self.queue_limit:
            costs = [turn.cost for turn in self._queue if not turn.granted.done()]
            mean = sum(costs) / len(costs) / self.policy.slots if costs else 1.0
            seconds = max(1, min(_LONGEST_RETRY, math.ceil(mean)))  # until a place is free
            raise ApiError(
                429,
                f"the queue is full: {self.waiting} sequences wait for {self.policy.slots} that "
                f"may run together; try again in {seconds} s",
                headers={"Retry-After": str(seconds)},
            )

    def enqueue(self, cost: float, ahead: float = 0.0) -> Turn:
        """Take a place in the queue; its turn may have come at once. ApiError 429 when it is full.

        It stands there as though it had come ``ahead`` seconds earlier.

        Whoever has just released a turn, and has awaited nothing since, finds a place.
        """
        self.check_room()
        now = self._clock() - ahead
        key = (now + cost if self.policy.short_first else now, next(self._order))
        turn = Turn(key, cost, asyncio.get_running_loop().create_future())
        heapq.heappush(self._queue, turn)
        self._grant()
        return turn

    def ahead(self, turn: Turn) -> int:
        """Return how many others get their turn before this one, the running ones included."""
        before = sum(not other.granted.done() and other < turn for other in self._queue)
        return before + self.running

    def release(self) -> None:
        """End a turn that was granted."""
        self.running -= 1
        self._grant()

    def _grant(self) -> None:
        # A turn in the queue that is done was given up.
        while self._queue and (self._queue[0].granted.done() or self.running < self.policy.slots):
            turn = heapq.heappop(self._queue)
            if not turn.granted.done():
                self.running += 1
                turn.granted.set_result(None)
