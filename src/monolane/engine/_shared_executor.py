"""Several requests on an executor that runs one epoch at a time.

Requests come and go while it runs (continuous batching): one joins the epoch from its next pass on,
and leaves it when it is cancelled. Where an executor can do neither, or something is to be done
between epochs, the epoch is interrupted, which ends it within one pass; the next one begins with
the requests that are there then. Results do not change by it: a token depends on its own sequence
alone, bit by bit.

No thread is set aside for this: one of the threads that wait for tokens reads the executor for all.
It does so without the lock, and so does whoever begins an epoch or acts between two: ranks that
start anew take as long as loading does, and who cancels meanwhile must not wait for that. Each
other sleeps until it has tokens, and who leaves wakes one to read on: waking all after each pass
would be 63 threads for a token of one.
"""

import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from monolane.errors import BackendError
from monolane.executor_api import GONE, NO_TOKEN, Advance, Executor, Guide, Kept, TokenEvent

# How long one wait for tokens may keep Python from seeing a Ctrl-C, in seconds.
_PATIENCE = 0.1

_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class _State:
    advance: Advance  # as it was asked for
    begin: int  # tokens in the slot at that time
    changed: threading.Condition  # of the executor's lock; its reader sleeps on it
    drawn: int = 0
    # The tokens of its history, those to feed and those drawn: "I", as native executors read them.
    known: "array[int]" = field(init=False)
    guide: Guide | None = None  # what is left of the last one: its draw is still to come
    inside: bool = False  # the epoch that begins or runs serves it
    events: list[TokenEvent] = field(default_factory=list)  # not yet taken
    done: bool = False
    cancelled: bool = False  # to take no further part; the executor may still hold its slot
    resting: bool = False  # its reader awaits the end: another thread gathers its tokens
    stopping: bool = False  # its reader waits until the executor lets go of its slot
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.known = array("I", self.advance.history)
        self.known.extend(self.advance.token_ids)

    @property
    def pending(self) -> bool:
        """Whether there is nothing to tell its reader yet."""
        if self.stopping:
            return self.inside and not self.done
        return not self.events and not self.done and not self.cancelled

    def rest(self, length: int) -> Advance:
        """Return what is still to be done when ``length`` tokens are in the slot."""
        given = len(self.advance.history)
        fed = given + length - self.begin
        return replace(
            self.advance,
            token_ids=tuple(self.known[fed:]),
            budget=self.advance.budget - self.drawn,
            history=np.asarray(self.known[:fed]) if given == self.begin else (),
        )

    def take(self, event: TokenEvent) -> None:
        """Note a token, or that there is none, and wake who waits for it."""
        self._note(event)
        if self.done or not (self.resting or self.stopping):
            self.changed.notify()

    def _note(self, event: TokenEvent) -> None:
        if event.token_id == GONE:
            self.done = True
            return
        if event.token_id == NO_TOKEN:
            self.done, self.error = True, no_token_error()
            return
        self.events.append(event)
        self.known.append(event.token_id)
        self.drawn += 1
        advance = self.advance
        self.done = event.token_id in advance.stop_ids or self.drawn == advance.budget
        if (guide := self.guide) is not None:
            self.guide = replace(guide, forced=guide.forced[1:]) if guide.forced else None
            self.done |= guide.mask is None and len(guide.forced) == 1


def no_token_error() -> BackendError:
    """Return the error of a row of logits from which no token can be drawn."""
    return BackendError(
        "logits: expected a finite number as the largest, got NaN or infinity; weights of this "
        "model are no numbers, or too large for this dtype: fetch it again, or load it with dtype "
        "float32"
    )


class SharedExecutor:
    """Shares an executor among requests, each with a slot of its own; for any thread."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.name, self.dtype = executor.name, executor.dtype
        self.slots, self.context = executor.slots, executor.context
        self._requests: dict[int, _State] = {}  # by slot
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # for all that wait but readers
        self._sleepers: list[_State] = []  # whose readers sleep
        self._called: _State | None = None  # of these, who was woken to read on
        self._inside: list[_State] = []  # those that the epoch which begins or runs serves
        self._running = False  # the executor has an epoch
        self._held = False  # some thread begins an epoch, reads it, or acts between two
        self._outdated = False  # who takes part has changed while the epoch began
        self._barred = 0  # callers that wait for no epoch to run

    def length(self, slot: int) -> int:
        """Return the number of tokens in a slot."""
        return self.executor.length(slot)

    def empty(self, slot: int, adapter: int) -> None:
        """Take back all tokens of a slot, for a sequence of an adapter, or of 0: of none."""

        def act() -> None:
            self.executor.truncate(slot, 0)
            self.executor.adapt(slot, adapter)

        self._of_slot(slot, act)

    def truncate(self, slot: int, length: int) -> None:
        """Take back all tokens of a slot from ``length`` on."""
        self._of_slot(slot, lambda: self.executor.truncate(slot, length))

    def copy(self, source: int, target: int) -> None:
        """Make a slot hold what another holds, to go on from it."""
        self._exclusively(lambda: self.executor.copy(source, target))

    def save(self, slot: int, begin: int, end: int) -> Kept:
        """Return what a slot holds of positions ``begin`` to ``end - 1``."""
        return self._of_slot(slot, lambda: self.executor.save(slot, begin, end))

    def restore(self, slot: int, kept: Kept, count: int) -> None:
        """Put the first ``count`` positions of what was saved behind those of a slot."""
        self._of_slot(slot, lambda: self.executor.restore(slot, kept, count))

    def logits(self, slot: int, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Feed tokens; return their logits, float32 [T, V]."""
        return self._exclusively(lambda: self.executor.logits(slot, token_ids))

    def hidden(self, slot: int, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Feed tokens; return what the head reads of each, normed, float32 [T, D]."""
        return self._exclusively(lambda: self.executor.hidden(slot, token_ids))

    def bytes_per_token(self, length: int) -> int | None:
        """Bytes that drawing one token reads behind ``length`` tokens; None where no plan says."""
        return self.executor.bytes_per_token(length)

    def start(self, advance: Advance) -> "Request":
        """Add a request; it is served as soon as it is read."""
        with self._changed:
            # Where a rank was lost since, the slot is empty, and all is fed again.
            begin = len(advance.history) or self.executor.length(advance.slot)
            request = _State(advance, begin, threading.Condition(self._lock))
            self._requests[advance.slot] = request
            try:
                self._admit([request])
            except BaseException:
                del self._requests[advance.slot]
                raise
        return Request(self, advance.slot)

    def close(self) -> None:
        """Give back memory and threads."""
        self.executor.close()

    def _of_slot(self, slot: int, action: Callable[[], _T]) -> _T:
        """Do something to a slot of no request: beside the others' epoch, where that may be.

        Nobody but who asks has the slot, so what is free stays free.
        """
        return action() if self.executor.is_free(slot) else self._exclusively(action)

    def _exclusively(self, action: Callable[[], _T]) -> _T:
        """Do something that the executor allows between epochs only."""
        with self._changed:
            self._barred += 1  # else the readers begin the next epoch before we look
            self._interrupt()
            try:
                while self._running or self._held:
                    self._turn()
                with self._alone():
                    return action()
            finally:
                self._barred -= 1
                self._changed.notify_all()
                self._pass_on()

    def read(self, slot: int) -> list[TokenEvent]:
        """Wait for tokens of a slot; [] once its request is over."""
        with self._changed:
            request = self._requests[slot]
            try:
                while request.pending:
                    self._turn(request)
            finally:
                self._pass_on()
            events, request.events = request.events, []
            if not events and request.error is not None:
                raise request.error
            return events

    def gather(self) -> None:
        """Move things on without a wait for tokens, for readers that await the end."""
        with self._changed:
            try:
                if not self._blocked():
                    if self._running:
                        self._read(0.0)
                    elif self._waiting():
                        self._begin()
            finally:
                self._pass_on()

    def is_ready(self, slot: int) -> bool:
        """Tell whether a slot has tokens that are not its last."""
        request = self._requests[slot]
        return bool(request.events) and not (request.done or request.cancelled)

    def await_end(self, slot: int, until: Callable[[], bool]) -> None:
        """Wait until a slot's last token has come or its request was cancelled, or ``until``."""
        with self._changed:
            request = self._requests[slot]
            request.resting = True
            try:
                while not (request.done or request.cancelled or until()):
                    request.changed.wait()
            finally:
                request.resting = False

    def wake(self, slot: int) -> None:
        """Have who awaits a slot's end ask ``until``."""
        with self._changed:
            request = self._requests.get(slot)
            if request is not None:
                request.changed.notify()

    def guide(self, slot: int, guide: Guide) -> None:
        """Say what may come next in a guided slot."""
        with self._changed:
            request = self._requests[slot]
            request.guide = guide
            if self._running and request.inside and not request.done:
                self.executor.guide(slot, guide)

    def cancel(self, slot: int) -> None:
        """Have a request take no further part, without waiting for that."""
        with self._changed:
            request = self._requests.get(slot)
            if request is None or request.done:
                return
            request.cancelled = True
            self._dismiss(request)
            request.changed.notify()

    def stop(self, slot: int) -> None:
        """Take a request out, and wait until the executor has let go of its slot."""
        with self._changed:
            request = self._requests[slot]
            request.cancelled = request.stopping = True
            self._dismiss(request)
            try:
                while request.pending:
                    self._turn(request)
                if request.inside:  # an epoch may go on for days
                    request.inside = False
                    self._inside.remove(request)
                del self._requests[slot]
                while self._running and not self._requests:  # it ends at once, and an idle engine
                    self._turn()  # has none
            finally:
                self._requests.pop(slot, None)
                self._pass_on()

    def _interrupt(self) -> None:
        if self._running:
            self.executor.interrupt()
        self._outdated = True

    def _admit(self, requests: Sequence[_State]) -> None:
        """Have requests join the epoch that runs; or be served by the next, without a long wait."""
        if self._running and requests:
            if self.executor.join([self._rest(request) for request in requests]):
                for request in requests:
                    request.inside = True
                self._inside += requests
                self._guide(requests)
            else:
                self._interrupt()

    def _dismiss(self, request: _State) -> None:
        """Have a request that was cancelled leave the epoch that serves it, or begins to."""
        served = request.inside and not request.done and self._running
        if served and not self.executor.leave(request.advance.slot):
            self._interrupt()

    def _rest(self, request: _State) -> Advance:
        return request.rest(self.executor.length(request.advance.slot))

    def _guide(self, requests: Sequence[_State]) -> None:
        """Post anew what is left of guides that came before the epoch."""
        for request in requests:
            if request.guide is not None:
                self.executor.guide(request.advance.slot, request.guide)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let go of the lock, held before and after, while nobody else uses the executor."""
        self._held = True
        self._changed.release()
        try:
            yield
        finally:
            self._changed.acquire()
            self._held = False
            self._changed.notify_all()

    def _turn(self, reader: _State | None = None) -> None:
        """Move things on by one wait, with the lock held, for a reader or for another caller."""
        if self._blocked():
            if reader is None:
                self._changed.wait()
            else:
                self._sleep(reader)
        elif self._running:
            self._read()
        else:
            self._begin()

    def _blocked(self) -> bool:
        return self._held or (self._barred > 0 and not self._running)

    def _sleep(self, reader: _State) -> None:
        self._sleepers.append(reader)
        try:
            reader.changed.wait()
        finally:
            self._sleepers.remove(reader)
            if self._called is reader:
                self._called = None

    def _pass_on(self) -> None:
        """Wake a reader that has nothing yet, to move things on in place of the caller."""
        if self._called is None and not self._blocked():
            self._called = next((x for x in self._sleepers if x.pending), None)
            if self._called is not None:
                self._called.changed.notify()

    def _read(self, seconds: float = _PATIENCE) -> None:
        error: BaseException | None = None
        over = False
        with self._alone():
            try:
                over = self.executor.read(seconds)
            except BaseException as caught:
                error, over = caught, not isinstance(caught, KeyboardInterrupt)
        # Taken apart from the wait: a Ctrl-C that ends the wait must not lose a token of others.
        self._hand_out(self.executor.take())
        if over:
            self._end(error)
        if isinstance(error, KeyboardInterrupt):
            raise error

    def _waiting(self) -> list[_State]:
        """Return the requests that no epoch serves, and that want one."""
        every = self._requests.values()
        return [one for one in every if not (one.inside or one.done or one.cancelled)]

    def _begin(self) -> None:
        self._inside = self._waiting()
        rests = [self._rest(request) for request in self._inside]
        for request in self._inside:
            request.inside = True
        self._outdated = False
        try:
            with self._alone():
                self.executor.start(rests)
            self._running = True
        except KeyboardInterrupt:
            # It came before the epoch began or behind, which the executor alone knows: what is
            # read is over at once where there is none.
            self._running = True
            self.executor.interrupt()
            self._read()
            raise
        except BaseException:
            self._leave()
            raise
        self._guide(self._inside)
        if self._outdated:
            self.executor.interrupt()
            return
        # Who has come and gone while it began.
        for request in self._inside:
            if request.cancelled:
                self._dismiss(request)
        self._admit(self._waiting())

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
                request.changed.notify()
        self._leave()

    def _leave(self) -> None:
        """Have nobody take part any more, also who has been taken out of the requests since."""
        for request in self._inside:
            request.inside = False
            if request.stopping:
                request.changed.notify()
        self._inside = []


class Request:
    """One request on a shared executor, while the epochs run that serve it."""

    def __init__(self, shared: SharedExecutor, slot: int) -> None:
        self._shared, self._slot = shared, slot
        self._open = True

    def read(self) -> list[TokenEvent]:
        """Wait for tokens and return all that are there; [] once the request is over.

        A failure of the executor is raised here, after the tokens that came before it.
        """
        return self._shared.read(self._slot) if self._open else []

    @property
    def is_ready(self) -> bool:
        """Whether there are tokens that are not the last, so that reading them takes no wait."""
        return self._open and self._shared.is_ready(self._slot)

    def await_end(self, until: Callable[[], bool]) -> None:
        """Wait until the last token has come or it was cancelled, or ``until`` says so.

        Another thread calls ``SharedExecutor.gather`` and reads meanwhile; ``wake`` has ``until``
        asked.
        """
        if self._open:
            self._shared.await_end(self._slot, until)

    def wake(self) -> None:
        """Have who awaits the end ask ``until``, from any thread."""
        if self._open:
            self._shared.wake(self._slot)

    def guide(self, guide: Guide) -> None:
        """Say what may come next: once at first, then once after each draw."""
        self._shared.guide(self._slot, guide)

    def cancel(self) -> None:
        """Ask for the end, within one pass, from any thread; a read that waits returns then."""
        if self._open:
            self._shared.cancel(self._slot)

    def stop(self) -> None:
        """Ask for the end, within one pass, and wait for it. Harmless on an ended request."""
        if self._open:
            self._open = False
            self._shared.stop(self._slot)
