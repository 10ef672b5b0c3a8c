"""What 'monolane bench' times: the tokens of an epoch, and a prompt, driven without an engine."""

import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from monolane.engine import Loading, ModelFiles, find_backend, open_executor
from monolane.errors import RequestError
from monolane.executor_api import Advance
from monolane.measure._arithmetic import ArithmeticProbe
from monolane.measure._bandwidth import ReadProbe
from monolane.measure._rounds import Case
from monolane.model import Blocks, Role, Weights
from monolane.plan import MAX_WIDTH, Plan, pass_cost

_PATIENCE = 1.0  # seconds of one wait for tokens


def _embedding_bytes(weights: Weights) -> int:
    blocks = weights.quantized.get((Role.EMBEDDING, None))
    if isinstance(blocks, Blocks):
        return blocks.data.nbytes
    return weights.outer[Role.EMBEDDING].nbytes


class LoadedModel:
    """A model in an executor of its own, with a slot for each case, driven without an engine.

    drafts, drafter   of an ``Advance``
    link_delay        of ``CpuExecutor``
    options           others of ``Loading``; the backend is "cpu" if none is named
    """

    def __init__(
        self,
        folder: Path,
        dtype: str = "auto",
        *,
        context: int,
        slots: int,
        drafts: int = 0,
        drafter: str = "auto",
        link_delay: float = 0.0,
        **options: Any,
    ) -> None:
        begin = time.perf_counter()
        files = ModelFiles.open(folder)
        weights = files.weights()
        config = weights.config
        if context > config.longest_context:
            raise RequestError(
                f"context: expected at most {config.longest_context} tokens, the model's context, "
                f"got {context} with the tokens to be drawn; measure at a smaller one"
            )
        asked = Loading(
            **{"backend": "cpu"} | options, dtype=dtype, context=context, max_sequences=slots
        )
        make = find_backend(asked.backend, asked)
        if link_delay:
            make = partial(make, link_delay=link_delay)
        self.executor = open_executor(make, asked, files, weights)
        self.load_seconds = time.perf_counter() - begin
        self.config = config
        # Rows are looked up, not streamed: the plan does not count them. A tied one is the head's.
        self.embedding_bytes = 0 if config.tie_embeddings else _embedding_bytes(weights)
        self.wanted_dtype = dtype
        self.dtype = self.executor.dtype  # of a GGUF file, what it has: no word of the option
        self.workers = self.executor.workers
        self.ranks, draft = asked.rank_count, asked.draft
        self.transport = "memory" if isinstance(asked.ranks, int) else "tcp"
        self.link_delay = link_delay
        self.drafts, self.drafter = drafts, drafter  # of an Advance
        self.draft = None if draft is None else Path(draft).name  # what a record says of it
        self.expert_memory = asked.expert_memory
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
        asked = Advance(
            slot=slot,
            token_ids=tuple(token_ids),
            budget=budget,
            drafts=self.drafts,
            drafter=self.drafter,
            prompt=len(token_ids),
        )
        executor.start([asked])
        over, events = False, []
        while not over:
            over = executor.read(_PATIENCE)
            events += executor.take()
        return events[-1].token_id, [event.time_ns for event in events]


class _ModelCase(Case):
    """A case of a model, and what the cores multiplied right before and after each sample.

    Where memory and cores change their speed from minute to minute, as on virtual machines, a
    sample has to be held against the speeds of its own minute.
    """

    def __init__(self, model: LoadedModel) -> None:
        super().__init__()
        self.model = model
        self.arithmetic: list[float] = []  # operations/s of all workers, of each sample
        self._cores = ArithmeticProbe(model.workers)

    def run(self) -> None:
        """Take one sample between two looks at the cores, and keep it."""
        before = self._cores.measure()
        super().run()
        self.arithmetic.append((before + self._cores.measure()) / 2)

    def forget(self) -> None:
        """Take the last sample back."""
        super().forget()
        self.arithmetic.pop()


class DecodeCase(_ModelCase):
    """Tokens of one epoch, behind ``context`` tokens that are there already.

    The memory is read right before and after each epoch.
    """

    def __init__(
        self, model: LoadedModel, slot: int, context: int, tokens: int, probe: ReadProbe
    ) -> None:
        assert context >= 1
        assert tokens >= 2
        super().__init__(model)  # samples: tokens/s of an epoch
        self.context, self.tokens = context, tokens
        self._slot, self._next, self._probe = slot, -1, probe
        self.shares: list[float] = []  # of the read bandwidth that an epoch came to: its MBU
        self.reads: list[tuple[float, float]] = []  # bytes/s of the memory, before and after each
        self.token_us: list[float] = []  # from token to token, of all epochs

    @property
    def bytes_per_token(self) -> int:
        """Bytes streamed for the token in the middle of an epoch."""
        return self.model.bytes_per_token(self.context + self.tokens // 2)

    def warm_up(self) -> None:
        """Fill the context, and draw once."""
        self._fill()
        self._draw()

    def measure(self) -> float:
        """Draw one epoch. The first token is not counted: its time holds the start of the epoch."""
        before = self._probe.measure()
        times = self._draw()
        self.reads.append((before, self._probe.measure()))
        speed = (len(times) - 1) / (times[-1] - times[0]) * 1e9
        self.shares.append(self.bytes_per_token * speed * 2 / sum(self.reads[-1]))
        self.token_us += (np.diff(np.asarray(times, np.int64)) / 1e3).tolist()
        return speed

    def forget(self) -> None:
        """Take the last epoch back."""
        super().forget()
        self.shares.pop()
        self.reads.pop()
        del self.token_us[-(self.tokens - 1) :]

    def _fill(self) -> None:
        self.model.executor.truncate(self._slot, 0)
        self._next, _ = self.model.epoch(
            self._slot, self.model.random_tokens(self.context), budget=1
        )

    def _draw(self) -> list[int]:
        executor = self.model.executor
        # As far back as windowed layers keep what they need; states go to the beginning alone.
        if self.tokens <= MAX_WIDTH and not self.model.config.layers_with_states:
            executor.truncate(self._slot, self.context)
        elif executor.length(self._slot) > self.context:
            self._fill()
        _, times = self.model.epoch(self._slot, [self._next], self.tokens)
        return times


class PrefillCase(_ModelCase):
    """From a prompt to its first token."""

    def __init__(self, model: LoadedModel, slot: int, tokens: int) -> None:
        assert tokens >= 1
        super().__init__(model)  # samples: tokens of the prompt per second, with the head's time
        self.tokens = tokens
        self._slot = slot
        self._prompt = model.random_tokens(tokens)

    def measure(self) -> float:
        """Feed the prompt and draw once."""
        self.model.executor.truncate(self._slot, 0)
        begin = time.perf_counter_ns()
        _, times = self.model.epoch(self._slot, self._prompt, budget=1)
        return self.tokens / (times[-1] - begin) * 1e9


def bench_cases(
    folder: Path,
    dtypes: Iterable[str],
    *,
    contexts: Sequence[int],
    prompts: Sequence[int],
    tokens: int,
    buffer: int,
    **options: Any,
) -> tuple[ReadProbe, list[DecodeCase], list[PrefillCase]]:
    """Return a probe of ``buffer`` bytes, and a case for each context and prompt in each dtype.

    ``options``: of ``LoadedModel``.
    """
    longest = max([max(contexts) + tokens, *prompts])
    slots = len(contexts) + 1  # one for each context, one for all prompts
    models = [
        LoadedModel(folder, dtype, context=longest, slots=slots, **options) for dtype in dtypes
    ]
    probe = ReadProbe(models[0].workers, buffer)
    lengths = list(enumerate(contexts))
    decodes = [DecodeCase(m, i, length, tokens, probe) for m in models for i, length in lengths]
    prefills = [PrefillCase(m, slots - 1, length) for m in models for length in prompts]
    return probe, decodes, prefills
