"""The oracle as an executor: any model, any machine, no speed.

It computes in the thread that reads, a pass of each sequence at a time: nothing runs ahead, and
there is nothing to wait for but a guide.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane.errors import BackendError, RequestError
from monolane.executor_api import (
    NO_TOKEN,
    Advance,
    Executor,
    Guide,
    Kept,
    KeptBytes,
    Loading,
    TokenEvent,
    bytes_of,
    check_adapt,
    describe_logprobs,
)
from monolane.model import Weights
from monolane.reference._cache import Cache
from monolane.reference._choose import choose
from monolane.reference._model import ReferenceModel
from monolane.reference._penalties import count_seen

# Tokens of a prompt in one pass. Bounds the scores of attention, [L, H, chunk, S], to some hundred
# megabytes at the 2B shape, and the wait for a cancelled prompt.
PREFILL_CHUNK = 256


def _unwarned() -> AbstractContextManager[object]:
    """Have NumPy say nothing of NaN and infinity: logits tell, and who reads them is told once."""
    return np.errstate(over="ignore", invalid="ignore")


class ReferenceExecutor(Executor):
    """NumPy in float32."""

    name = "reference"
    has_hidden = True
    dtype = "float32"

    def __init__(
        self,
        weights: Weights,
        dtype: str = "auto",
        *,
        context: int,
        slots: int,
        **options: Any,
    ) -> None:
        if options.get("workers") == 1:  # which it has
            del options["workers"]
        loading = Loading.of(self.name, dtype, context, slots, options)
        if dtype not in ("auto", "float32"):
            raise BackendError(
                f"dtype: the reference backend computes in float32 only, got {dtype!r}; "
                "leave it at 'auto'"
            )
        self.context = context
        self.slots = slots
        self._model = ReferenceModel(weights)
        self.cache_dtype = loading.cache_dtype
        self._adapters = loading.lora or ()
        self._caches = [self._model.new_cache(context, self.cache_dtype) for _ in range(slots)]
        self.cache_bytes = sum(cache.nbytes for cache in self._caches)
        self._running: list[_Sequence] = []
        self._guides: dict[int, queue.SimpleQueue[Guide]] = {}  # of the guided slots
        self._called = threading.Event()  # a guide has come, or an interruption
        self._interrupted = threading.Event()
        self._kept: list[TokenEvent] = []

    def length(self, slot: int) -> int:
        """Return the number of tokens in a slot."""
        return self._caches[slot].length

    def truncate(self, slot: int, length: int) -> None:
        """Take back all tokens of a slot from ``length`` on."""
        self._caches[slot].truncate(length)

    def adapt(self, slot: int, adapter: int) -> None:
        """Have the sequence of an empty slot be that of an adapter."""
        check_adapt(self.length(slot), adapter, len(self._adapters))
        self._caches[slot].adapter = self._adapters[adapter - 1] if adapter else None

    def copy(self, source: int, target: int) -> None:
        """Make a slot hold what another holds."""
        self._caches[target].copy_from(self._caches[source])

    def save(self, slot: int, begin: int, end: int) -> Kept:
        """Return what a slot holds of positions ``begin`` to ``end - 1``; tails are states.

        The same bits go on from it only in passes as wide: ``keeps_prefixes`` is false, for NumPy's
        products round by their shape.
        """
        cache = self._caches[slot]
        return KeptBytes(cache.save(begin, end), cache.save_tail(end))

    def restore(self, slot: int, kept: Kept, count: int) -> None:
        """Put the first ``count`` positions of what was saved behind those of a slot."""
        found = bytes_of(kept)
        self._caches[slot].restore(found.rows[:, :count])
        if found.tail is not None and count == found.positions:
            self._caches[slot].restore_tail(found.tail)

    def logits(self, slot: int, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Feed tokens; return their logits, float32 [T, V]."""
        return self._in_chunks(self._model.forward, slot, token_ids)

    def hidden(self, slot: int, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Feed tokens; return what the head reads of each, normed, float32 [T, D]."""
        return self._in_chunks(self._model.hidden, slot, token_ids)

    def streams(
        self, slot: int, token_ids: Sequence[int], layers: Sequence[int]
    ) -> npt.NDArray[np.float32]:
        """Feed tokens; return the stream before each of some layers, float32 [T, layers * D]."""

        def feed(ids: Sequence[int], cache: Cache) -> npt.NDArray[np.float32]:
            return np.concatenate(self._model.streams(ids, cache, layers), axis=-1)

        return self._in_chunks(feed, slot, token_ids)

    def _in_chunks(
        self,
        feed: Callable[[Sequence[int], Cache], npt.NDArray[np.float32]],
        slot: int,
        token_ids: Sequence[int],
    ) -> npt.NDArray[np.float32]:
        chunks = range(0, max(1, len(token_ids)), PREFILL_CHUNK)
        cache = self._caches[slot]
        with _unwarned():
            return np.concatenate([feed(token_ids[i : i + PREFILL_CHUNK], cache) for i in chunks])

    def start(self, advances: Sequence[Advance]) -> None:
        """Begin an epoch."""
        for advance in advances:
            advance.check_history(self.length(advance.slot))
        self._interrupted.clear()
        self._guides = {a.slot: queue.SimpleQueue() for a in advances if a.guided}
        self._running = [
            _Sequence(self._model, a, self._caches[a.slot], self._guides.get(a.slot))
            for a in advances
        ]

    def read(self, seconds: float) -> bool:
        """Make one pass of each sequence, or wait for a guide; return whether the epoch is over."""
        self._called.clear()
        try:
            moved = False
            for sequence in self._running:
                if self._interrupted.is_set():
                    break
                if sequence.ready():
                    self._kept += sequence.step()
                    moved = True
        except Exception:
            self._running = []
            raise
        self._running = [sequence for sequence in self._running if not sequence.done]
        if self._interrupted.is_set():
            self._running = []
        elif self._running and not moved:
            self._called.wait(seconds)
        return not self._running

    def take(self) -> list[TokenEvent]:
        """Return the tokens kept so far, once."""
        taken, self._kept = self._kept, []
        return taken

    def guide(self, slot: int, guide: Guide) -> None:
        """Say what may come next in a guided slot."""
        if slot not in self._guides:
            raise RequestError(f"guide: expected a guided slot of the epoch, got {slot}")
        self._guides[slot].put(guide)
        self._called.set()

    def interrupt(self) -> None:
        """Ask the epoch to end within one pass."""
        self._interrupted.set()
        self._called.set()


class _Sequence:
    """One slot within an epoch: each step is one pass."""

    def __init__(
        self,
        model: ReferenceModel,
        advance: Advance,
        cache: Cache,
        guides: "queue.SimpleQueue[Guide] | None",
    ) -> None:
        self._model, self._advance, self._cache = model, advance, cache
        self._pending = list(advance.token_ids)
        self._guides = guides
        self._guide: Guide | None = None  # of the next draw
        self._seen = count_seen((*advance.history, *advance.token_ids), advance.prompt)
        self._drawn = 0
        self.done = False

    def ready(self) -> bool:
        """Tell whether the next step has what it needs."""
        if self._guides is None or self._guide is not None:
            return True
        try:
            self._guide = self._guides.get_nowait()
        except queue.Empty:
            return False
        return True

    def step(self) -> list[TokenEvent]:
        """Feed the next tokens; return those forced or drawn, none amid the prompt."""
        if self._guide is not None and self._guide.forced:
            return self._force(self._guide)
        advance = self._advance
        chunk = self._pending[:PREFILL_CHUNK]
        with _unwarned():
            logits_V = self._model.forward(chunk, self._cache)[-1]
        self._pending = self._pending[PREFILL_CHUNK:]
        if self._pending:
            return []
        mask = None if self._guide is None else self._guide.mask
        token = choose(logits_V, advance.draw, self._cache.length, mask, self._seen)
        if token == NO_TOKEN:
            self.done = True
            return [TokenEvent(advance.slot, NO_TOKEN, time.perf_counter_ns())]
        self._pending, self._guide = [token], None
        event = self._event(token)
        if advance.logprobs is None:
            return [event]
        return [replace(event, logprob=describe_logprobs(logits_V, token, advance.logprobs))]

    def _force(self, guide: Guide) -> list[TokenEvent]:
        events: list[TokenEvent] = []
        for token in guide.forced:
            self._pending.append(token)
            events.append(self._event(token))
            if self.done:
                return events
        self.done = guide.mask is None
        self._guide = replace(guide, forced=())
        return events

    def _event(self, token: int) -> TokenEvent:
        self._drawn += 1
        self._seen[token] += 1
        self.done = token in self._advance.stop_ids or self._drawn == self._advance.budget
        return TokenEvent(self._advance.slot, token, time.perf_counter_ns())
