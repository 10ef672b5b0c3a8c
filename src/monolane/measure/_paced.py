"""An executor that draws tokens at a set pace: what a server costs, without what a model costs.

It computes nothing and sleeps until tokens are due, so on a small machine the server has the cores
to itself, as it would beside a GPU. What it says is a loop of printable tokens.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monolane.engine import Engine, ModelFiles
from monolane.errors import BackendError
from monolane.executor_api import Advance, Executor, Guide, TokenEvent
from monolane.sources import find_model


@dataclass(slots=True)
class _Clock:
    """What a slot's last epoch fed and drew, and when."""

    held: int = 0  # tokens in the slot before
    count: int = 0  # tokens fed to it
    since_ns: int = 0  # when their reading began
    begin_ns: float = 0.0  # when it ends: the first token is due a step later
    drawn: int = 0  # since then
    said: int = 0  # tokens of the loop, those of earlier epochs of this request included


class PacedExecutor(Executor):
    """``tokens_per_second`` for each sequence, however many run; ``prefill`` for its prompt."""

    name, dtype = "paced", "none"

    def __init__(
        self,
        vocab: int,
        token_ids: Sequence[int],
        tokens_per_second: float,
        *,
        prefill: float = 1e6,
        context: int = 1 << 20,
        slots: int = 1,
    ) -> None:
        self.context, self.slots = context, slots
        self._vocab, self._token_ids = vocab, tuple(token_ids)
        self._step_ns, self._token_ns = 1e9 / tokens_per_second, 1e9 / prefill
        self._clocks = [_Clock() for _ in range(slots)]
        self._running: dict[int, Advance] = {}  # by slot
        self._kept: list[TokenEvent] = []
        self._interrupted = threading.Event()

    def length(self, slot: int) -> int:
        """Return the number of tokens in a slot; amid a prompt, those read by now."""
        clock = self._clocks[slot]
        if clock.drawn:
            return clock.held + clock.count + clock.drawn - 1  # the last has not been fed
        read = int((time.perf_counter_ns() - clock.since_ns) / self._token_ns)
        return clock.held + min(read, clock.count)

    def truncate(self, slot: int, length: int) -> None:
        """Take back all tokens of a slot from ``length`` on."""
        self._clocks[slot] = _Clock(held=min(length, self.length(slot)))

    def logits(self, slot: int, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Feed tokens; return logits, float32 [T, V], under which all tokens are equal."""
        self._clocks[slot] = _Clock(held=self.length(slot) + len(token_ids))
        return np.zeros((len(token_ids), self._vocab), np.float32)

    def start(self, advances: Sequence[Advance]) -> None:
        """Begin to wait. A request that went on from an earlier epoch keeps its pace."""
        self._interrupted.clear()
        now = time.perf_counter_ns()
        for advance in advances:
            slot, count = advance.slot, len(advance.token_ids)
            clock, held = self._clocks[slot], self.length(slot)
            if clock.drawn and count == 1:
                begin_ns = clock.begin_ns + clock.drawn * self._step_ns
                self._clocks[slot] = _Clock(held, count, now, begin_ns, said=clock.said)
            else:
                self._clocks[slot] = _Clock(held, count, now, now + count * self._token_ns)
        self._running = {advance.slot: advance for advance in advances}

    def read(self, seconds: float) -> bool:
        """Keep the tokens that have become due, or wait for one; return whether all is over."""
        if self._interrupted.is_set():
            self._running = {}
        due = [self._draw(advance) for advance in list(self._running.values())]
        if self._running and not any(due):
            now = time.perf_counter_ns()
            clocks = [self._clocks[slot] for slot in self._running]
            first = min(clock.begin_ns + (clock.drawn + 1) * self._step_ns for clock in clocks)
            self._interrupted.wait(max(0.0, min(seconds, (first - now) / 1e9)))
        return not self._running

    def take(self) -> list[TokenEvent]:
        """Return the tokens kept so far, once."""
        taken, self._kept = self._kept, []
        return taken

    def guide(self, slot: int, guide: Guide) -> None:
        """Refuse: what it says is fixed."""
        raise BackendError("the paced executor takes no constraints; use 'cpu' or 'reference'")

    def interrupt(self) -> None:
        """End before the next token."""
        self._interrupted.set()

    def _draw(self, advance: Advance) -> bool:
        """Keep what is due of a sequence; return whether anything was."""
        clock = self._clocks[advance.slot]
        due = int((time.perf_counter_ns() - clock.begin_ns) / self._step_ns)
        due = min(due, advance.budget)
        begin = clock.drawn
        while clock.drawn < due and advance.slot in self._running:
            token = self._token_ids[clock.said % len(self._token_ids)]
            clock.drawn += 1
            clock.said += 1
            time_ns = int(clock.begin_ns + clock.drawn * self._step_ns)
            self._kept.append(TokenEvent(advance.slot, token, time_ns))
            if clock.drawn == advance.budget or token in advance.stop_ids:
                del self._running[advance.slot]
        return clock.drawn > begin


def paced_engine(
    tokens_per_second: float, *, prefill: float = 1e6, context: int = 1 << 20, slots: int = 1
) -> Engine:
    """Return an engine with the demo model's tokenizer and a paced executor."""
    begin = time.perf_counter()
    files = ModelFiles.open(find_model("demo"))
    tokenizer = files.tokenizer()
    assert tokenizer is not None
    text = "def mean(values):\n    return sum(values) / len(values)\n\n\n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    executor = PacedExecutor(
        files.config.vocab_size,
        ids,
        tokens_per_second,
        prefill=prefill,
        context=context,
        slots=slots,
    )
    return Engine(files, executor, tokenizer, time.perf_counter() - begin)
