"""What is timed, one round after another, so that a machine that drifts drifts under all alike."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from monolane.engine import find_backend
from monolane.epoch import Advance
from monolane.errors import RequestError
from monolane.measure._bandwidth import ReadProbe
from monolane.measure._neighbours import Neighbours
from monolane.model import Checkpoint, Role, Weights, read_config
from monolane.plan import MAX_WIDTH, Plan, pass_cost

_PATIENCE = 1.0  # seconds of one wait for tokens
_ATTEMPTS = 3  # at a sample that nobody disturbs


class Case(Protocol):
    """Something to be timed; it keeps its own samples."""

    @property
    def name(self) -> str:
        """What is measured."""

    def warm_up(self) -> None:
        """Touch everything once, untimed."""

    def run(self) -> None:
        """Take one sample."""

    def forget(self) -> None:
        """Take the last sample back."""


def run_rounds(
    cases: Sequence[Case],
    rounds: int,
    progress: Callable[[], None],
    neighbours: Neighbours | None = None,
) -> int:
    """Warm up, then take a sample of every case in each round; return how many were disturbed.

    Each round begins with another case, so that none always follows the same neighbour. With
    ``neighbours``, a sample during which other programs ran is taken again, at most twice and while
    there is patience; one that is disturbed even then counts. ``progress`` is called after every
    step: (rounds + 1) * len(cases) times.
    """
    for case in cases:
        case.warm_up()
        progress()
    disturbed = 0
    for i in range(rounds):
        first = i % len(cases)
        for case in (*cases[first:], *cases[:first]):
            disturbed += not _take(case, neighbours)
            progress()
    return disturbed


def _take(case: Case, neighbours: Neighbours | None) -> bool:
    """Take a sample; return whether nobody disturbed it."""
    if neighbours is None:
        case.run()
        return True
    for attempt in range(_ATTEMPTS):
        neighbours.await_quiet()
        case.run()
        if neighbours.were_quiet():
            return True
        if neighbours.patience <= 0 or attempt == _ATTEMPTS - 1:
            break
        case.forget()
    return False


class LoadedModel:
    """A model in an executor of its own, with a slot for each case, driven without an engine."""

    def __init__(
        self,
        folder: Path,
        dtype: str,
        *,
        context: int,
        slots: int,
        workers: int | None,
        backend: str = "cpu",
    ) -> None:
        config = read_config(folder)
        if context > config.max_positions:
            raise RequestError(
                f"context: expected at most {config.max_positions} tokens, the model's context, "
                f"got {context} with the tokens to be drawn; measure at a smaller one"
            )
        make = find_backend(backend)
        begin = time.perf_counter()
        weights = Weights.load(config, Checkpoint.open(folder))
        self.executor = make(weights, dtype, context=context, slots=slots, workers=workers)
        self.load_seconds = time.perf_counter() - begin
        self.config = config
        # Rows are looked up, not streamed: the plan does not count them. A tied one is the head's.
        embedding = weights.outer[Role.EMBEDDING]
        self.embedding_bytes = 0 if config.tie_embeddings else embedding.nbytes
        self.dtype = self.executor.dtype
        self.workers = self.executor.workers
        self._rng = np.random.default_rng(0)

    @property
    def plan(self) -> Plan:
        """The plan that the executor runs; RequestError if it runs none."""
        if not isinstance(self.executor.plan, Plan):
            raise RequestError(
                f"backend: expected one that runs a plan, got {self.executor.name!r}; use cpu"
            )
        return self.executor.plan

    def random_tokens(self, count: int) -> tuple[int, ...]:
        """Return token ids without meaning: speed does not depend on them."""
        return tuple(int(token) for token in self._rng.integers(self.config.vocab_size, size=count))

    def bytes_per_token(self, length: int) -> int:
        """Bytes that a pass of one token streams when the sequence has ``length`` tokens."""
        return pass_cost(self.plan, 1, length).bytes

    def epoch(self, slot: int, token_ids: Sequence[int], budget: int) -> tuple[int, list[int]]:
        """Feed tokens and draw ``budget`` greedily; return the last token and all times in ns."""
        executor = self.executor
        executor.start([Advance(slot=slot, token_ids=tuple(token_ids), budget=budget)])
        while not executor.read(_PATIENCE):
            pass
        events = executor.take()
        return events[-1].token_id, [event.time_ns for event in events]


class DecodeCase:
    """Tokens of one epoch, behind ``context`` tokens that are there already.

    The memory is read right before and after each epoch: where it changes its speed from minute to
    minute, as on virtual machines, an epoch has to be held against the speed of its own minute.
    """

    def __init__(
        self, model: LoadedModel, slot: int, context: int, tokens: int, probe: ReadProbe
    ) -> None:
        assert context >= 1
        assert tokens >= 2
        self.model, self.context, self.tokens = model, context, tokens
        self._slot, self._next, self._probe = slot, -1, probe
        self.samples: list[float] = []  # tokens/s of an epoch
        self.shares: list[float] = []  # of the read bandwidth that an epoch came to: its MBU
        self.token_us: list[float] = []  # from token to token, of all epochs

    @property
    def name(self) -> str:
        """What is measured."""
        return f"decode {self.model.dtype} at {self.context:,}"

    @property
    def bytes_per_token(self) -> int:
        """Bytes streamed for the token in the middle of an epoch."""
        return self.model.bytes_per_token(self.context + self.tokens // 2)

    def warm_up(self) -> None:
        """Fill the context, and draw once."""
        self._fill()
        self._draw()

    def run(self) -> None:
        """Draw one epoch. The first token is not counted: its time holds the start of the epoch."""
        before = self._probe.read()
        times = self._draw()
        bandwidth = (before + self._probe.read()) / 2
        speed = (len(times) - 1) / (times[-1] - times[0]) * 1e9
        self.samples.append(speed)
        self.shares.append(self.bytes_per_token * speed / bandwidth)
        deltas = np.diff(np.asarray(times, np.int64)) / 1e3
        self.token_us += [float(delta) for delta in deltas]

    def forget(self) -> None:
        """Take the last epoch back."""
        self.samples.pop()
        self.shares.pop()
        del self.token_us[-(self.tokens - 1) :]

    def _fill(self) -> None:
        self.model.executor.truncate(self._slot, 0)
        self._next, _ = self.model.epoch(
            self._slot, self.model.random_tokens(self.context), budget=1
        )

    def _draw(self) -> list[int]:
        executor = self.model.executor
        if self.tokens <= MAX_WIDTH:  # as far back as windowed layers keep what they need
            executor.truncate(self._slot, self.context)
        elif executor.length(self._slot) > self.context:
            self._fill()
        _, times = self.model.epoch(self._slot, [self._next], self.tokens)
        return times


class PrefillCase:
    """From a prompt to its first token."""

    def __init__(self, model: LoadedModel, slot: int, tokens: int) -> None:
        assert tokens >= 1
        self.model, self.tokens = model, tokens
        self._slot = slot
        self._prompt = model.random_tokens(tokens)
        self.samples: list[float] = []  # tokens of the prompt per second, the head's time included

    @property
    def name(self) -> str:
        """What is measured."""
        return f"prefill {self.model.dtype} of {self.tokens:,}"

    def warm_up(self) -> None:
        """Do it once."""
        self._prefill()

    def run(self) -> None:
        """Take one sample."""
        self.samples.append(self._prefill())

    def forget(self) -> None:
        """Take the last sample back."""
        self.samples.pop()

    def _prefill(self) -> float:
        self.model.executor.truncate(self._slot, 0)
        begin = time.perf_counter_ns()
        _, times = self.model.epoch(self._slot, self._prompt, budget=1)
        return self.tokens / (times[-1] - begin) * 1e9
