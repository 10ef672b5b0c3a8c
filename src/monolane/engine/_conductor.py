"""Several requests on a core that runs one epoch at a time.

A request that comes or goes raises the yield flag; the epoch ends within one pass, and the next one
begins with whoever is there then. Results do not change by it: here a token depends on its
own sequence alone, bit by bit.

Nobody's thread is set aside for this: whoever waits for tokens reads the core on behalf of all.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from monolane.engine._backend import Advance, Epoch, TokenEvent
from monolane.engine._constraint import Guide


class Core(Protocol):
    """What a native core offers; every call returns at once, but ``read``."""

    def start(self, advances: Sequence[Advance]) -> None:
        """Begin an epoch."""

    def read(self) -> bool:
        """Wait a while for tokens, and keep them; return whether the epoch is over."""

    def take(self) -> list[TokenEvent]:
        """Return the tokens kept so far, once."""

    def guide(self, slot: int, guide: Guide) -> None:
        """Say what may come next in a guided slot of the epoch."""

    def interrupt(self) -> None:
        """Ask the epoch to end within one pass."""

    def length(self, slot: int) -> int:
        """Return the number of tokens in a slot."""


@dataclass(slots=True)
class _Request:
    advance: Advance  # as it was asked for
    begin: int  # tokens in the slot at that time
    drawn: list[int] = field(default_factory=list)
    guide: Guide | None = None  # what is left of the last one: its draw is still to come
    inside: bool = False  # the epoch that runs serves it
    events: list[TokenEvent] = field(default_factory=list)  # not yet taken
    done: bool = False
    cancelled: bool = False  # to take no further part; the core may still hold its slot
    error: BaseException | None = None

    def rest(self, length: int) -> Advance:
        """Return what is still to be done when ``length`` tokens are in the slot."""
        known = (*self.advance.token_ids, *self.drawn)
        budget = self.advance.budget - len(self.drawn)
        return replace(self.advance, token_ids=known[length - self.begin :], budget=budget)

    def take(self, event: TokenEvent) -> None:
        """Note a token."""
        self.events.append(event)
        self.drawn.append(event.token_id)
        advance = self.advance
        self.done = event.token_id in advance.stop_ids or len(self.drawn) == advance.budget
        if (guide := self.guide) is not None:
            self.guide = replace(guide, forced=guide.forced[1:]) if guide.forced else None
            self.done |= guide.mask is None and len(guide.forced) == 1


class Conductor:
    """Shares a core among requests, each with a slot of its own."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._requests: dict[int, _Request] = {}  # by slot
        self._changed = threading.Condition()
        self._running = False  # the core has an epoch
        self._reading = False  # some thread reads it
        self._barred = 0  # callers that wait for no epoch to run

    def start(self, advances: Sequence[Advance]) -> Epoch:
        """Add a request of one slot; it is served as soon as its epoch is read."""
        (advance,) = advances
        with self._changed:
            self._requests[advance.slot] = _Request(advance, self._core.length(advance.slot))
            self._interrupt()
        return _SharedEpoch(self, advance.slot)

    def exclusively(self, action: Callable[[], None]) -> None:
        """Do something that the core allows between epochs only."""
        with self._changed:
            self._barred += 1  # else the readers begin the next epoch before we look
            self._interrupt()
            try:
                while self._running:
                    self._turn()
                action()
            finally:
                self._barred -= 1
                self._changed.notify_all()

    def read(self, slot: int) -> list[TokenEvent]:
        """Wait for tokens of a slot; [] once its request is over."""
        with self._changed:
            request = self._requests[slot]
            while not request.events and not request.done and not request.cancelled:
                self._turn()
            events, request.events = request.events, []
            if not events and request.error is not None:
                raise request.error
            return events

    def guide(self, slot: int, guide: Guide) -> None:
        """Say what may come next in a guided slot."""
        with self._changed:
            request = self._requests[slot]
            request.guide = guide
            if request.inside and not request.done:
                self._core.guide(slot, guide)

    def cancel(self, slot: int) -> None:
        """Have a request take no further part, without waiting for that."""
        with self._changed:
            request = self._requests.get(slot)
            if request is None or request.done:
                return
            request.cancelled = True
            self._interrupt()
            self._changed.notify_all()

    def stop(self, slot: int) -> None:
        """Take a request out, and wait until the core has let go of its slot."""
        with self._changed:
            request = self._requests.pop(slot)
            if request.done:
                return
            self._interrupt()
            while self._running and not request.done:
                # Another epoch may have begun without this request by the time that we look.
                if self._turn():
                    return

    def _interrupt(self) -> None:
        if self._running:
            self._core.interrupt()

    def _turn(self) -> bool:
        """Move things on by one wait, with the lock held; return whether an epoch has ended."""
        if self._reading or (self._barred and not self._running):
            self._changed.wait()
            return False
        if not self._running:
            self._begin()
        self._reading = True
        self._changed.release()
        error: BaseException | None = None
        over = False
        try:
            over = self._core.read()
        except BaseException as caught:
            error, over = caught, not isinstance(caught, KeyboardInterrupt)
        finally:
            self._changed.acquire()
            self._reading = False
        # Taken apart from the wait: a Ctrl-C that ends the wait must not lose a token of others.
        self._hand_out(self._core.take())
        if over:
            self._end(error)
        self._changed.notify_all()
        if isinstance(error, KeyboardInterrupt):
            raise error
        return over

    def _begin(self) -> None:
        waiting = [
            request
            for request in self._requests.values()
            if not request.done and not request.cancelled
        ]
        self._core.start(
            [request.rest(self._core.length(request.advance.slot)) for request in waiting]
        )
        self._running = True
        for request in waiting:
            request.inside = True
            if request.guide is not None:
                self._core.guide(request.advance.slot, request.guide)

    def _hand_out(self, events: list[TokenEvent]) -> None:
        for event in events:
            request = self._requests.get(event.slot)
            if request is not None:
                request.take(event)

    def _end(self, error: BaseException | None) -> None:
        self._running = False
        for request in self._requests.values():
            if error is not None and not request.done:
                request.done, request.error = True, error
            request.inside = False


class _SharedEpoch(Epoch):
    """One request's view of the epochs that serve it."""

    def __init__(self, conductor: Conductor, slot: int) -> None:
        self._conductor, self._slot = conductor, slot
        self._open = True

    def read(self) -> list[TokenEvent]:
        """Wait for tokens and return all that are there; [] once the request is over."""
        return self._conductor.read(self._slot) if self._open else []

    def guide(self, slot: int, guide: Guide) -> None:
        """Say what may come next."""
        self._conductor.guide(slot, guide)

    def cancel(self) -> None:
        """Ask for the request to be taken out, within one pass."""
        if self._open:
            self._conductor.cancel(self._slot)

    def stop(self) -> None:
        """Take the request out, within one pass."""
        if self._open:
            self._open = False
            self._conductor.stop(self._slot)
