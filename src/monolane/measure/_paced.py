"""A backend that draws tokens at a set pace: what a server costs, without what a model costs.

It computes nothing and sleeps until tokens are due, so on a small machine the server has the cores
to itself, as it would beside a GPU. What it says is a loop of printable tokens.
"""

import threading
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from monolane.engine import Advance, Backend, Engine, Epoch, TokenEvent, find_model
from monolane.model import read_config
from monolane.text import Tokenizer

_PATIENCE = 0.01  # seconds of one wait: how late a cancel may be seen


class PacedBackend(Backend):
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
        self._pace, self._prefill = tokens_per_second, prefill
        self._lengths = [0] * slots
        self._prompts: dict[int, tuple[int, int, int]] = {}  # slot -> from, tokens, since (ns)

    def length(self, slot: int) -> int:
        """Return the number of tokens in a slot; amid a prompt, those read by now."""
        begin, count, since_ns = self._prompts.get(slot, (0, 0, 0))
        read = int((time.perf_counter_ns() - since_ns) / 1e9 * self._prefill)
        return begin + read if read < count else self._lengths[slot]

    def truncate(self, slot: int, length: int) -> None:
        """Take back all tokens of a slot from ``length`` on."""
        self._prompts.pop(slot, None)
        self._lengths[slot] = min(length, self._lengths[slot])

    def logits(self, slot: int, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Feed tokens; return logits, float32 [T, V], under which all tokens are equal."""
        self._lengths[slot] += len(token_ids)
        return np.zeros((len(token_ids), self._vocab), np.float32)

    def start(self, advances: Sequence[Advance]) -> Epoch:
        """Begin to wait."""
        (advance,) = advances
        held, prompt = self._lengths[advance.slot], len(advance.token_ids)
        self._prompts[advance.slot] = (held, prompt, time.perf_counter_ns())
        self._lengths[advance.slot] = held + prompt + advance.budget - 1
        begin = time.perf_counter_ns() + int(len(advance.token_ids) / self._prefill * 1e9)
        return _PacedEpoch(advance, self._token_ids, begin, 1e9 / self._pace)


class _PacedEpoch(Epoch):
    def __init__(
        self, advance: Advance, token_ids: tuple[int, ...], begin_ns: int, step_ns: float
    ) -> None:
        self._advance, self._token_ids = advance, token_ids
        self._begin, self._step = begin_ns, step_ns
        self._drawn = 0
        self._over = threading.Event()

    def read(self) -> list[TokenEvent]:
        """Return the tokens that have become due, waiting for one; [] at the end."""
        while not self._over.is_set() and self._drawn < self._advance.budget:
            due = int((time.perf_counter_ns() - self._begin) / self._step)
            count = min(due, self._advance.budget) - self._drawn
            if count > 0:
                return [self._draw() for _ in range(count)]
            wait = self._begin + (self._drawn + 1) * self._step - time.perf_counter_ns()
            time.sleep(max(0.0, min(_PATIENCE, wait / 1e9)))
        return []

    def cancel(self) -> None:
        """End before the next token."""
        self._over.set()

    def stop(self) -> None:
        """End; there is nothing to wait for."""
        self._over.set()

    def _draw(self) -> TokenEvent:
        token = self._token_ids[self._drawn % len(self._token_ids)]
        self._drawn += 1
        time_ns = int(self._begin + self._drawn * self._step)
        return TokenEvent(self._advance.slot, token, time_ns)


def paced_engine(
    tokens_per_second: float, *, prefill: float = 1e6, context: int = 1 << 20, slots: int = 1
) -> Engine:
    """Return an engine with the demo model's tokenizer and a paced backend."""
    begin = time.perf_counter()
    folder = find_model("demo")
    config, tokenizer = read_config(folder), Tokenizer.open(folder)
    assert tokenizer is not None
    text = "def mean(values):\n    return sum(values) / len(values)\n\n\n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    backend = PacedBackend(
        config.vocab_size,
        ids,
        tokens_per_second,
        prefill=prefill,
        context=context,
        slots=slots,
    )
    return Engine(folder, config, backend, tokenizer, time.perf_counter() - begin)
