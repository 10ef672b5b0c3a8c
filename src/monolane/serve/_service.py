"""What all requests share: the engine, turns, threads, figures; loaded once, closed once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from monolane.engine import Engine
from monolane.serve._errors import ApiError
from monolane.serve._metrics import Metrics
from monolane.serve._movement import Movement
from monolane.serve._options import ServerOptions
from monolane.serve._preparer import Preparer
from monolane.serve._scheduler import Scheduler

if TYPE_CHECKING:
    from monolane.serve._run import Run

log = logging.getLogger("monolane.serve")

_STEP = 64  # tokens of context: what they add to a token's bytes does not show

State = Literal["loading", "ready", "failed", "draining"]


class Service:
    """The engine behind the routes; ``load`` makes it, on a thread, while the port is open."""

    def __init__(
        self,
        load: Callable[[], Engine],
        options: ServerOptions,
        bandwidth: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.options = options
        self.state: State = "loading"
        self.failure: Exception | None = None
        self.bandwidth: float | None = None  # bytes/s that this machine reads; None: not measured
        self.created = int(time.time())
        self.scheduler = Scheduler(options.policy, options.queue_limit)
        self.preparer = Preparer()
        self.decoders = ThreadPoolExecutor(options.policy.slots, thread_name_prefix="decode")
        self.metrics = Metrics(self)
        self.runs: set[Run] = set()
        self.movement = Movement(self._positions, options.stall_seconds)
        self._watching: asyncio.Task[None] | None = None
        self._load, self._measure = load, bandwidth
        self._engine: Engine | None = None
        # Walks the plan, a millisecond: once for each of a few lengths.
        self._cost = lru_cache(maxsize=4096)(lambda length: self._cost_at(length))

    async def start(self) -> None:
        """Load the model; afterwards ``state`` is "ready", or "failed" with a ``failure``."""
        begin = time.monotonic()
        try:
            self._engine = await asyncio.to_thread(self._load)
            self.bandwidth = await asyncio.to_thread(self._measure)
        except Exception as error:
            self.failure, self.state = error, "failed"
            return
        self.metrics.ready(self._engine, time.monotonic() - begin)
        self._watching = asyncio.create_task(self.movement.watch())
        if self.state == "loading":
            self.state = "ready"

    @property
    def engine(self) -> Engine:
        """The engine; ApiError 503 while there is none."""
        if self._engine is None or self.state == "loading":
            raise ApiError(503, "Loading model")
        return self._engine

    @property
    def model_name(self) -> str:
        """What the model goes by."""
        return self.options.model_name

    def slot_usage(self) -> float:
        """Return the share of the engine's sequences that are in use."""
        return self.scheduler.running / self.options.policy.slots

    def bytes_per_token(self, length: int) -> int | None:
        """Bytes that a token reads behind so many others, to within a few; None: not known."""
        return self._cost(max(1, length // _STEP * _STEP))

    def check_model(self, name: str | None) -> None:
        """Raise the 404 for a model that is not ours; None is ours."""
        if name is not None and name != self.model_name:
            raise ApiError(404, f"model: expected {self.model_name!r}, got {name!r:.100}", "model")

    def health(self) -> tuple[int, str]:
        """Return the status and the word of /health."""
        if self.state != "ready":
            return 503, self.state
        if self.scheduler.running and self.movement.stalled:
            return 503, "stalled"
        return 200, "ok"

    def _positions(self) -> list[tuple[Run, tuple[int, ...]]]:
        return [(run, run.positions()) for run in self.runs]

    def _cost_at(self, length: int) -> int | None:
        return self.engine.backend.bytes_per_token(min(length, self.engine.backend.context))

    def end_runs(self) -> None:
        """Cancel whatever runs or waits, because the server ends."""
        for run in list(self.runs):
            run.cancel("shutdown")

    async def close(self) -> None:
        """End all requests and give back threads and memory."""
        self.state = "draining"
        self.end_runs()
        if self._watching is not None:
            self._watching.cancel()
        self.preparer.close()
        await asyncio.to_thread(self.decoders.shutdown)
        if self._engine is not None:
            self._engine.close()
