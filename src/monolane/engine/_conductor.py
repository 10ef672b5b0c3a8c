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


class Core(Protocol):
    """What a native core offers; every call returns at once, but ``read``."""

    def start(self, advances: Sequence[Advance]) -> None:
        """Begin an epoch."""

    def read(self) -> bool:
        """Wait a while for tokens, and keep them; return whether the epoch is over."""

    def take(self) -> list[TokenEvent]:
        """Return the tokens kept so far, once."""

    def interrupt(self) -> None:
        """Ask the epoch to end within one pass."""

    def length(self, slot: int) -> int:
        """Return the number of tokens in a slot."""


@dataclass(slots=True)
class _Request:
    advance: Advance  # what is still to be done when an epoch begins
    begin: int  # tokens in the slot at that time
    events: list[TokenEvent] = field(default_factory=list)  # not yet taken
    done: bool = False
    error: BaseException | None = None


class Conductor:
    """Shares a core among requests, each with a slot of its own."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._requests: dict[int, _Request] = {}  # by slot
        self._changed = threading.Condition()
        self._running = False  # the core has an epoch
        self._reading = False  # some thread reads it

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
            self._interrupt()
            while self._running:
                self._turn()
            action()

    def read(self, slot: int) -> list[TokenEvent]:
        """Wait for tokens of a slot; [] once its request is over."""
        with self._changed:
            request = self._requests[slot]
            while not request.events and not request.done:
                self._turn()
            events, request.events = request.events, []
            if not events and request.error is not None:
                raise request.error
            return events

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
        if self._reading:
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
        waiting = [request for request in self._requests.values() if not request.done]
        for request in waiting:
            request.begin = self._core.length(request.advance.slot)
        self._core.start([request.advance for request in waiting])
        self._running = True

    def _hand_out(self, events: list[TokenEvent]) -> None:
        for event in events:
            request = self._requests.get(event.slot)
            if request is None:
                continue
            advance = request.advance
            request.events.append(event)
            request.done = event.token_id in advance.stop_ids or advance.budget == 1
            # From here on the request continues with the token just drawn.
            request.begin = -1
            request.advance = replace(
                advance, token_ids=(event.token_id,), budget=max(1, advance.budget - 1)
            )

    def _end(self, error: BaseException | None) -> None:
        self._running = False
        for request in self._requests.values():
            if request.done:
                continue
            if error is not None:
                request.done, request.error = True, error
            elif request.begin >= 0:  # amid its prompt: the rest of it is still to be fed
                fed = self._core.length(request.advance.slot) - request.begin
                rest = request.advance.token_ids[fed:]
                request.advance = replace(request.advance, token_ids=rest)


class _SharedEpoch(Epoch):
    """One request's view of the epochs that serve it."""

    def __init__(self, conductor: Conductor, slot: int) -> None:
        self._conductor, self._slot = conductor, slot
        self._open = True

    def read(self) -> list[TokenEvent]:
        """Wait for tokens and return all that are there; [] once the request is over."""
        return self._conductor.read(self._slot) if self._open else []

    def stop(self) -> None:
        """Take the request out, within one pass."""
        if self._open:
            self._open = False
            self._conductor.stop(self._slot)
