"""The oracle behind the engine's contract: any model, any machine, no speed."""

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from monolane.engine._backend import Advance, Backend, Epoch, TokenEvent, TokenLogprob
from monolane.engine._constraint import Guide
from monolane.errors import BackendError
from monolane.model import Weights
from monolane.reference import Cache, ReferenceModel, choose, log_probabilities

# Tokens of a prompt in one pass. Bounds the scores of attention, [L, H, chunk, S], to some hundred
# megabytes at the 2B shape, and the wait for a cancelled prompt.
PREFILL_CHUNK = 256


class ReferenceBackend(Backend):
    """NumPy in float32."""

    name = "reference"
    dtype = "float32"

    def __init__(self, weights: Weights, dtype: str, context: int, slots: int) -> None:
        if dtype not in ("auto", "float32"):
            raise BackendError(
                f"dtype: the reference backend computes in float32 only, got {dtype!r}; "
                "leave it at 'auto'"
            )
        self.context = context
        self.slots = slots
        self._model = ReferenceModel(weights)
        self._caches = [self._model.new_cache(context) for _ in range(slots)]

    def length(self, slot: int) -> int:
        """Return the number of tokens in a slot."""
        return self._caches[slot].length

    def truncate(self, slot: int, length: int) -> None:
        """Take back all tokens of a slot from ``length`` on."""
        self._caches[slot].truncate(length)

    def logits(self, slot: int, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Feed tokens; return their logits, float32 [T, V]."""
        chunks = range(0, len(token_ids), PREFILL_CHUNK)
        return np.concatenate(
            [self._feed(slot, token_ids[i : i + PREFILL_CHUNK]) for i in chunks]
            or [self._feed(slot, ())]
        )

    def start(self, advances: Sequence[Advance]) -> Epoch:
        """Begin an epoch on a thread of its own."""
        return _ReferenceEpoch(self._model, [(a, self._caches[a.slot]) for a in advances])

    def _feed(self, slot: int, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        return self._model.forward(token_ids, self._caches[slot])


class _ReferenceEpoch(Epoch):
    def __init__(self, model: ReferenceModel, work: list[tuple[Advance, Cache]]) -> None:
        self._model = model
        self._yield = threading.Event()
        self._guides: dict[int, queue.SimpleQueue[Guide]] = {
            advance.slot: queue.SimpleQueue() for advance, _ in work if advance.guided
        }
        self._called = threading.Event()  # a guide has come, or the word to end
        # Tokens, then one None or one exception: the end.
        self._ring: queue.SimpleQueue[TokenEvent | BaseException | None] = queue.SimpleQueue()
        self._ended = False
        self._thread = threading.Thread(target=self._run, args=(work,), name="monolane-reference")
        self._thread.daemon = True  # an abandoned epoch must not keep the process alive
        self._thread.start()

    def read(self) -> list[TokenEvent]:
        """Wait for tokens and return all that are there; [] once the epoch has ended."""
        events: list[TokenEvent] = []
        while not self._ended:
            try:
                item = self._ring.get(block=not events)
            except queue.Empty:
                break
            if isinstance(item, TokenEvent):
                events.append(item)
            elif events:  # give what came before the end first
                self._ring.put(item)
                break
            else:
                self._ended = True
                if item is not None:
                    raise item
        return events

    def guide(self, slot: int, guide: Guide) -> None:
        """Say what may come next in a guided slot."""
        self._guides[slot].put(guide)
        self._called.set()

    def cancel(self) -> None:
        """Ask for the end, within one pass."""
        self._yield.set()
        self._called.set()

    def stop(self) -> None:
        """Ask for the end, within one pass, and wait for it."""
        self.cancel()
        self._thread.join()

    def _run(self, work: list[tuple[Advance, Cache]]) -> None:
        try:
            running = [
                _Sequence(self._model, advance, cache, self._guides.get(advance.slot))
                for advance, cache in work
            ]
            while running and not self._yield.is_set():
                self._called.clear()
                moved = [self._step(sequence) for sequence in running]
                if not any(moved):
                    self._called.wait()
                running = [sequence for sequence in running if not sequence.done]
        except BaseException as error:
            self._ring.put(error)
        else:
            self._ring.put(None)

    def _step(self, sequence: "_Sequence") -> bool:
        """Advance one sequence; return False where it waits for a guide."""
        if not sequence.ready():
            return False
        for event in sequence.step():
            self._ring.put(event)
        return True


class _Sequence:
    """One slot within an epoch: each step is one pass.

    A guide is waited for before the pass that needs it: nothing runs ahead here.
    """

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
        chunk, self._pending = self._pending[:PREFILL_CHUNK], self._pending[PREFILL_CHUNK:]
        logits_V = self._model.forward(chunk, self._cache)[-1]
        if self._pending:
            return []
        token = self._choose(logits_V)
        self._pending, self._guide = [token], None
        logprob = None if advance.logprobs is None else _logprob(logits_V, token, advance.logprobs)
        return [self._event(token, logprob)]

    def _force(self, guide: Guide) -> list[TokenEvent]:
        events: list[TokenEvent] = []
        for token in guide.forced:
            self._pending.append(token)
            events.append(self._event(token, None))
            if self.done:
                return events
        self.done = guide.mask is None
        self._guide = replace(guide, forced=())
        return events

    def _event(self, token: int, logprob: TokenLogprob | None) -> TokenEvent:
        self._drawn += 1
        self.done = token in self._advance.stop_ids or self._drawn == self._advance.budget
        return TokenEvent(self._advance.slot, token, time.perf_counter_ns(), logprob)

    def _choose(self, logits_V: npt.NDArray[np.float32]) -> int:
        draw = self._advance.draw
        return choose(
            logits_V,
            temperature=draw.temperature,
            top_k=draw.top_k,
            top_p=draw.top_p,
            min_p=draw.min_p,
            seed=draw.seed,
            position=self._cache.length,
            logit_bias=draw.logit_bias,
            mask_M=None if self._guide is None else self._guide.mask,
        )


def _logprob(logits_V: npt.NDArray[np.float32], token: int, count: int) -> TokenLogprob:
    logprob_V = log_probabilities(logits_V)
    best = np.argsort(-logprob_V, kind="stable")[:count]
    return TokenLogprob(
        token, float(logprob_V[token]), tuple((int(i), float(logprob_V[i])) for i in best)
    )
