"""What all requests share: the engine, turns, threads, metrics; loaded once, closed once."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import Any, Literal, TypeVar

from monolane.engine import Engine, SamplingDefaults
from monolane.errors import RequestError
from monolane.serve._errors import ApiError
from monolane.serve._keys import GUEST
from monolane.serve._options import ServerOptions
from monolane.serve._run.bodies import ROOM, Bodies, Body
from monolane.serve._run.choice import Choice
from monolane.serve._run.fair_queue import NOBODY
from monolane.serve._run.memory import give_back, settle
from monolane.serve._run.metrics import Metrics
from monolane.serve._run.output_thread import OutputThread
from monolane.serve._run.preparers import LeftError, Preparers
from monolane.serve._run.reading_process import LONG_BODY, Here, ReadingProcess, Setup
from monolane.serve._run.scheduler import Scheduler

_STEP = 64  # tokens of context, which add too few bytes to a token to matter
_LOOKS = 8  # at what runs, within the seconds that count as a stall
_PREPARE_WAITING = 64  # requests that may wait to be read; a longer queue, more
_GUESTS_BEHIND = 600.0  # seconds: whoever has a key and comes in these goes before a guest
_GUEST_RETRY = 5  # seconds
_TIDY_SECONDS = 1.0  # from the end of a large request until its memory is given back

State = Literal["loading", "ready", "failed", "draining"]
T = TypeVar("T")


async def result_of(done: "Future[T]") -> T:
    """Return what a thread's future comes to have.

    asyncio's own way copies its state and looks at both ends for who cancels: three times the work.
    """
    loop = asyncio.get_running_loop()
    here = loop.create_future()

    def tell() -> None:
        if not here.done():
            here.set_result(None)

    def wake(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(tell)

    done.add_done_callback(wake)
    await here
    try:
        return done.result()
    except CancelledError:
        raise asyncio.CancelledError from None


class Service:
    """The engine behind the routes; ``load`` makes it, on a thread, while the port is open."""

    def __init__(
        self,
        load: Callable[[], Engine],
        options: ServerOptions,
        bandwidth: Callable[[], float | None] = lambda: None,
        reads_apart: bool = False,
    ) -> None:
        """``reads_apart``: long bodies that need no model are answered by another process."""
        self.options = options
        self.state: State = "loading"
        self.failure: Exception | None = None
        self.bandwidth: float | None = None  # bytes/s that this machine reads; None: not measured
        self.created = int(time.time())
        self.scheduler = Scheduler(options.policy, options.queue_limit)
        self.metrics = Metrics(options.model_name, self.scheduler)
        # Each ends a request that runs or waits.
        self.cancels: set[Callable[[Literal["shutdown"]], None]] = set()
        self.decoders = ThreadPoolExecutor(options.policy.slots, thread_name_prefix="decode")
        self.output = OutputThread(lambda: self.engine.backend.gather())
        self.preparers = Preparers(
            max(_PREPARE_WAITING, options.queue_limit + options.policy.slots)
        )
        self.here = Here(self.preparers)
        self._reads_apart = reads_apart
        self._apart: ReadingProcess | None = None
        self.bodies = Bodies(max(ROOM, 2 * options.max_body_bytes))
        self._tidying: asyncio.TimerHandle | None = None
        self.running: set[Choice] = set()  # those that decode
        self.guests = 0  # requests without a key that are in here
        self._progressed = time.monotonic()
        self._watching: asyncio.Task[None] | None = None
        self._load, self._measure = load, bandwidth
        self._engine: Engine | None = None
        # Walks the plan, a millisecond: once for each of a few lengths.
        self._bytes_per_token = lru_cache(maxsize=4096)(
            lambda length: self.engine.backend.bytes_per_token(length)
        )

    async def start(self) -> None:
        """Load the model; afterwards ``state`` is "ready", or "failed" with a ``failure``."""
        begin = time.monotonic()
        try:
            self._engine = await asyncio.to_thread(self._load)
            self._check_names(self._engine)
            self.bandwidth = await asyncio.to_thread(self._measure)
            await asyncio.to_thread(settle)
        except Exception as error:
            self.failure, self.state = error, "failed"
            return
        if self._reads_apart:
            self._apart = self._process_for(self._engine)
        self.metrics.ready(self._engine, time.monotonic() - begin)
        self._watching = asyncio.create_task(self._watch())
        if self.state == "loading":
            self.state = "ready"

    def _process_for(self, engine: Engine) -> ReadingProcess:
        options = self.options
        setup = Setup(
            str(engine.folder),
            engine.backend.context,
            tuple(engine.adapters.names),
            options.model_name,
            options.any_model,
            options.tool_format,
            options.max_body_bytes,
        )
        return ReadingProcess(setup, options.queue_limit + _PREPARE_WAITING)

    def reader_of(self, body: Body) -> Here | ReadingProcess:
        """Return who answers a body that needs no model, and has the threads that wait for it."""
        apart = self._apart
        return apart if apart and body.size > LONG_BODY and apart.takes_next() else self.here

    def _check_names(self, engine: Engine) -> None:
        """RequestError where an adapter goes by the model's name."""
        if (name := self.options.model_name) in engine.adapters.names:
            raise RequestError(
                f"lora: expected other names than {name!r}, which the model itself goes by; give "
                "the adapter another, or the model with --name"
            )

    @property
    def engine(self) -> Engine:
        """The engine; ApiError 503 while there is none."""
        if self._engine is None or self.state == "loading":
            raise ApiError(503, "Loading model")
        return self._engine

    @cached_property
    def defaults(self) -> SamplingDefaults:
        """How to draw where a request does not say."""
        given = self.options.defaults
        return given.over(self.engine.defaults) if self.options.model_defaults else given

    def timings(self, choice: Choice) -> dict[str, Any]:
        """Return the ``timings`` of a choice as of now."""
        length = len(choice.prompt_ids) + choice.drawn // 2  # of the context, at half of its answer
        place = min(max(1, length // _STEP * _STEP), self.engine.backend.context)
        return choice.timings(self._bytes_per_token(place), self.bandwidth)

    def check_model(self, name: str | None) -> None:
        """Raise the 404 for a model that is not ours, nor an adapter's; None and "" are ours."""
        ours = (self.options.model_name, *filter(None, self.engine.adapters.names))
        if name and name not in ours and not self.options.any_model:
            raise ApiError(
                404,
                f"model: expected {' or '.join(map(repr, ours))}, got {name!r:.100}; a server "
                "with --any-model takes any name",
                "model",
            )

    def called(self, name: str | None) -> str:
        """Return what an answer's model is called: as an adapter that was named, or as ours."""
        return self.engine.adapters.named(name) or self.options.model_name

    def namespace(self, owner: bytes) -> str:
        """Return whose prefixes a request takes: those of its own key, or all if they are shared.

        Else a key could tell from the time to the first token what another has asked. A guest takes
        nobody's.
        """
        if self.options.share_prefixes:
            return ""
        return secrets.token_hex(16) if owner == GUEST else owner.hex()

    def ahead(self, owner: bytes) -> float:
        """Return the priority of a request, in seconds: that of its key."""
        return -_GUESTS_BEHIND if owner == GUEST else self.options.keys.priorities.get(owner, 0.0)

    @contextmanager
    def place(self, owner: bytes) -> Iterator[None]:
        """Hold a place for a request; ApiError 429 for a guest where no more may be."""
        if owner != GUEST:
            yield
            return
        if self.guests >= self.options.guests:
            raise ApiError(
                429,
                f"{self.guests} guests are being answered or wait, which is as many as may; try "
                f"again in {_GUEST_RETRY} s, or ask with a key",
                headers={"Retry-After": str(_GUEST_RETRY)},
            )
        self.guests += 1
        try:
            yield
        finally:
            self.guests -= 1

    def health(self) -> tuple[int, str]:
        """Return the code and the status of /health."""
        if self.state != "ready":
            return 503, self.state
        stalled = time.monotonic() - self._progressed > self.options.stall_seconds
        return (503, "stalled") if self.running and stalled else (200, "ok")

    def note_progress(self) -> None:
        """Say that a token was drawn, or a sequence begun; from any thread."""
        self._progressed = time.monotonic()

    async def _watch(self) -> None:
        """Note the progress of what runs, until cancelled.

        Tokens alone do not tell it: a long prompt may take minutes until its first one. So the
        places of the running sequences, in prompt or answer, are looked at too.
        """
        seen: dict[Choice, int] = {}
        while True:
            await asyncio.sleep(min(1.0, self.options.stall_seconds / _LOOKS))
            places = {choice: choice.stream.position for choice in self.running}
            if places != seen:
                seen = places
                self.note_progress()

    async def prepare(
        self,
        work: Callable[[], T],
        gone: "asyncio.Task[None] | None" = None,
        body: Body | None = None,
        preparers: Preparers | None = None,
    ) -> T:
        """Return what ``work`` returns, on a thread: it may take seconds before an answer begins.

        ``gone`` is done when the client has left: work is dropped then, at the latest before its
        next unit. ``body`` is what it is about, ``preparers`` whose threads do it, where those are
        not the usual ones. ApiError 429 where too much waits.
        """
        by = preparers or self.preparers
        what = (body.sender, body.size, body.costly) if body else (NOBODY, 0, False)
        job = by.submit(work, *what)
        if body is not None:
            body.give_up = lambda: by.refuse(job, self.bodies.refused())
        if gone is not None:
            gone.add_done_callback(leave := lambda _: by.leave(job))
        try:
            found: T = await result_of(job.done)
            return found
        except (asyncio.CancelledError, LeftError):
            by.leave(job)
            if gone is None or not gone.done():
                raise  # it is the server that ends
            raise ApiError(499, "the client closed the connection") from None
        finally:
            if gone is not None:
                gone.remove_done_callback(leave)
            if body is not None:
                body.give_up = None

    def tidy(self) -> None:
        """Give memory back in a moment, after a large request; once for many."""
        if self._tidying is None:
            self._tidying = asyncio.get_running_loop().call_later(_TIDY_SECONDS, self._tidy)

    def _tidy(self) -> None:
        self._tidying = None
        if self.state != "draining":
            self.preparers.aside(give_back)

    def end_requests(self) -> None:
        """Cancel what runs or waits, because the server ends."""
        for cancel in list(self.cancels):
            cancel("shutdown")

    def abandon(self) -> None:
        """End all requests, also those that are being read; none can be made any more."""
        self.end_requests()
        self.preparers.close()
        if self._apart is not None:
            self._apart.close()

    async def close(self) -> None:
        """End all requests and give back threads and memory."""
        self.state = "draining"
        self.abandon()
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.to_thread(self.decoders.shutdown)
        await asyncio.to_thread(self.output.close)
        if self._engine is not None:
            self._engine.close()
