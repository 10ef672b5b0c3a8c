"""Preparation in units: bodies parsed, templates rendered, texts encoded, grammars compiled.

A body of a few bytes may ask for seconds of work. So work is cut into units, and between two of
them it is decided anew who has a thread. One thread is kept for short units; the other takes long
ones first. So a short unit waits for at most the one that each thread has begun, whatever waits
beside it, and long work always goes on. Who is next is fair between keys and connections.

Work that waits between two units keeps a thread of the pool blocked, which costs little. A
generator of units would cost none, but each function on the way would have to be one.
"""

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from monolane.errors import EngineClosedError
from monolane.serve._errors import ApiError
from monolane.serve._run.fair_queue import Entry, FairQueue, Sender

SHORT = 8 << 10  # bytes of a body whose preparation is one short unit: a few milliseconds
LONG = 1 << 20  # the cost of a unit whose work no size tells: a grammar, a template
# Long bodies whose preparation has begun, at a time: each takes several times its size.
_OPEN = 2
# Each unit costs its sender at least so much. A credit is four such units, or eight grammars.
_LEAST = 2 << 10
_SHORT_CREDIT = 8 << 10
_LONG_CREDIT = 8 << 20

T = TypeVar("T")


class LeftError(Exception):
    """The client of this work has gone, or the server ends."""


@dataclass(slots=True, eq=False)
class Job(Entry):
    """Work of one request; ``waited``: units that the short thread began while it waited."""

    work: Callable[[], Any] = lambda: None
    done: "Future[Any]" = field(default_factory=Future)
    size: int = 0  # bytes of its body
    long: bool = False  # it is no single short unit, or is one no more
    kept: bool = False  # it belongs to an answer that has begun
    begun: bool = False
    waited: int = 0
    _left: bool = False
    _go: threading.Event = field(default_factory=threading.Event)


class Preparers:
    """Two threads' worth of preparation; at most ``limit`` requests wait for it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # More threads than run: those between two units wait in one of theirs.
        self._threads = ThreadPoolExecutor(limit + 2, thread_name_prefix="prepare")
        self._lock = threading.Lock()  # of all below
        self._short: FairQueue[Job] = FairQueue(_SHORT_CREDIT)
        self._long: FairQueue[Job] = FairQueue(_LONG_CREDIT)
        self._lanes: list[Job | None] = [None, None]  # what runs: short units alone; any
        self._jobs: set[Job] = set()
        self._open = 0  # long bodies whose preparation has begun and goes on
        self._closed = False

    def submit(self, work: Callable[[], T], sender: Sender, size: int, costly: bool = False) -> Job:
        """Have work done, whose body has so many bytes; ``Job.done`` has what it returns.

        ``costly``: it is long whatever its size.
        Where too many wait, the one that would be last fails with a 429.
        """
        job = Job(sender, max(size, _LEAST), work=work, size=size, long=costly or size > SHORT)
        with self._lock:
            if self._closed:
                raise ApiError(503, "the server is shutting down; send the request to another")
            self._jobs.add(job)
            self._queue(job).put(job)
            waiting = sum(not other.kept for other in self._jobs)
            full = self._last() if waiting > self._limit else None
            self._dispatch()
        if full is not None:
            self.refuse(
                full,
                ApiError(
                    429,
                    f"{self._limit} requests wait to be read; try again in 1 s",
                    headers={"Retry-After": "1"},
                ),
            )
        return job

    def lend(self, sender: Sender, work: Callable[[], T]) -> T:
        """Have work done as a long unit and return what it returns; for a thread that waits for it.

        It is never refused. EngineClosedError where the server ends.
        """
        job = Job(sender, LONG, work=work, long=True, kept=True)
        with self._lock:
            if self._closed:
                raise EngineClosedError("the server is shutting down")
            self._jobs.add(job)
            self._queue(job).put(job)
            self._dispatch()
        try:
            found: T = job.done.result()
            return found
        except CancelledError:
            raise EngineClosedError("the server is shutting down") from None

    def refuse(self, job: Job, error: ApiError) -> bool:
        """Have work that has not begun fail; False where it has begun."""
        with self._lock:
            if job.begun or job not in self._jobs:
                return False
            self._take_out(job)
        if job.done.set_running_or_notify_cancel():
            job.done.set_exception(error)
        return True

    def leave(self, job: Job) -> None:
        """Drop work: before it begins, or before its next unit."""
        with self._lock:
            job._left = True
            if not job.begun:
                self._take_out(job)
                job.done.cancel()
            elif self._queue(job).remove(job):
                job._go.set()

    def aside(self, work: Callable[[], None]) -> None:
        """Have work done that no request asked for, beside the units."""
        with self._lock:
            if not self._closed:
                self._threads.submit(work)

    def close(self) -> None:
        """Drop all work that has not begun, and the rest before its next unit."""
        with self._lock:
            self._closed = True
            jobs = list(self._jobs)
        for job in jobs:
            self.leave(job)
        self._threads.shutdown(wait=False)

    def next_unit(self, job: Job, cost: int | None) -> None:
        """Let others have the thread whose turn it is, then go on; see ``next_unit`` below."""
        cost = job.size if cost is None else cost
        if cost <= SHORT and not job.long:
            return  # all of it is one short unit
        with self._lock:
            job.long = True
            self._lanes[self._lanes.index(job)] = None
            if not job._left:
                job.cost = max(cost, _LEAST)
                job._go.clear()
                self._queue(job).put(job)
            self._dispatch()
        if not job._left:
            job._go.wait()
        if job._left:
            raise LeftError

    def _queue(self, job: Job) -> FairQueue[Job]:
        return self._long if job.long else self._short

    def _last(self) -> Job | None:
        """Return who would be last of those that have not begun."""
        return self._long.last(_is_new) or self._short.last(_is_new)

    def _take_out(self, job: Job) -> None:
        self._queue(job).remove(job)
        self._jobs.discard(job)

    def _dispatch(self) -> None:
        """Give each free thread a unit; with the lock held."""
        for lane, running in enumerate(self._lanes):
            if running is not None or self._closed:
                continue
            job = (self._long.pop(self._may_begin) if lane else None) or self._short.pop()
            if job is None:
                continue
            if not lane:
                for other in (*self._short, *self._long):
                    other.waited += 1
            self._lanes[lane] = job
            if job.begun:
                job._go.set()
            else:
                job.begun = True
                self._open += job.size > SHORT
                self._threads.submit(self._run, job)

    def _may_begin(self, job: Job) -> bool:
        return job.begun or job.size <= SHORT or self._open < _OPEN

    def _run(self, job: Job) -> None:
        """Do a job's work, on a thread of the pool; its first unit has been given to it."""
        _here.unit = lambda cost: self.next_unit(job, cost)
        error: BaseException | None = None
        found = None
        try:
            if job._left:
                raise LeftError
            found = job.work()
        except BaseException as caught:
            error = caught
        finally:
            _here.unit = None
        with self._lock:
            self._jobs.discard(job)
            self._open -= job.size > SHORT
            if job in self._lanes:
                self._lanes[self._lanes.index(job)] = None
            self._dispatch()
        if not job.done.set_running_or_notify_cancel():
            return
        if error is None:
            job.done.set_result(found)
        else:
            job.done.set_exception(error)


class _Here(threading.local):
    unit: Callable[[int | None], None] | None = None


_here = _Here()


def next_unit(cost: int | None = None) -> None:
    """Begin the next unit of the work of this thread, which costs about so many bytes of reading.

    None: as many as its body has. Whoever is next goes first. Nothing happens where no preparer
    runs the work. LeftError where its client has gone meanwhile.
    """
    if _here.unit is not None:
        _here.unit(cost)


def _is_new(job: Job) -> bool:
    return not job.begun and not job.kept
