"""A load on an OpenAI-compatible server: so many clients, or so many requests per second.

Bounded in count and in time. Clients are closed loops, each asking again once it has its answer; a
rate is an open loop, whose requests come at random moments whether or not earlier ones are done.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from monolane.errors import BackendError, RequestError
from monolane.measure._load_connections import Connections
from monolane.measure._load_exchange import Exchange, LoadTarget
from monolane.measure._load_outcome import Failure, Outcome, read_json, read_stream

MAX_OPEN = 512  # requests at once: a process has some thousand files
MAX_HELD = 1 << 30  # bytes of answers, which are parsed when a level is over
_CLOSE = 0.02  # of the wanted length of a prompt: near enough
_ROUNDS = 4  # of finding it
_NAMES = ("value", "index", "total", "line", "count", "name", "left", "right", "item", "size")
_FEW = 4  # tokens of an answer that only tells the length of its prompt: one may have no text


class PromptSource(Protocol):
    """Where the requests of a load get prompts of which none begins as another: no cache helps."""

    def take(self) -> str | list[int]:
        """Return the next one: a text, or token ids for a completion."""


class Prompts:
    """Prompts of ``words`` words, for a server whose tokenizer is not at hand.

    How many words make a prompt of so many tokens is found by asking (see ``Load.find_length``).
    The same ones for the same ``seed``.
    """

    def __init__(self, words: int, seed: int = 0) -> None:
        assert words >= 1
        self.words = words
        self._rng = np.random.default_rng(seed)

    def take(self) -> str:
        """Return the next one."""
        first = f"x{int(self._rng.integers(1 << 30)):x}"
        return " ".join(
            [first, *(_NAMES[i] for i in self._rng.integers(len(_NAMES), size=self.words - 1))]
        )


class IdPrompts:
    """Prompts of ``tokens`` token ids below ``vocab``, for a model that may have no tokenizer."""

    def __init__(self, tokens: int, vocab: int, seed: int = 0) -> None:
        assert tokens >= 1
        self._tokens, self._vocab = tokens, vocab
        self._rng = np.random.default_rng(seed)

    def take(self) -> list[int]:
        """Return the next one."""
        return [int(token) for token in self._rng.integers(self._vocab, size=self._tokens)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """What every request asks for; RequestError on construction if it cannot be.

    model       as the server names it
    chat        /v1/chat/completions rather than /v1/completions
    max_tokens  to be drawn, and no fewer where the server heeds ``ignore_eos``
    keep_alive  connections are kept for the next request, as most clients do
    ignore_eos  sent only where true: a server that is strict about unknown fields may refuse it
    timeout     seconds of one request, its connection included
    """

    model: str
    chat: bool = False
    max_tokens: int = 256
    ignore_eos: bool = True
    keep_alive: bool = True
    timeout: float = 120.0

    def __post_init__(self) -> None:
        if self.max_tokens < 2:
            raise RequestError(
                f"max_tokens: expected 2 or more, as a speed needs, got {self.max_tokens}"
            )
        if not self.timeout > 0:
            raise RequestError(f"timeout: expected seconds above 0, got {self.timeout}")

    @property
    def route(self) -> str:
        """Where requests go."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, prompt: str | list[int], max_tokens: int) -> dict[str, Any]:
        """Return one request: greedy, streamed, with its usage; ids are for completions only."""
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]}
        body = {
            "model": self.model,
            **(asked if self.chat else {"prompt": prompt}),
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return body | ({"ignore_eos": True} if self.ignore_eos else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How heavy a load is: either ``clients`` or ``rate`` (requests/s); ``requests`` in all.

    No request begins after ``seconds``.
    """

    clients: int | None = None
    rate: float | None = None
    requests: int = 8
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if (self.clients is None) == (self.rate is None):
            raise RequestError("load: expected either clients or a rate")
        if self.clients is not None and not 1 <= self.clients <= MAX_OPEN:
            raise RequestError(f"clients: expected 1 to {MAX_OPEN}, got {self.clients}")
        if self.rate is not None and not 0 < self.rate <= 10_000:
            raise RequestError(f"rate: expected requests/s above 0, to 10,000, got {self.rate}")
        if self.requests < 1 or not self.seconds > 0:
            raise RequestError(
                f"load: expected 1 request or more in more than 0 s, got {self.requests} in "
                f"{self.seconds:g} s"
            )


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a level came to."""

    level: Level
    outcomes: Sequence[Outcome]
    failures: Sequence[Failure]
    client_cpu: float  # processor time of this process while it ran, over the time that it ran

    @property
    def seconds(self) -> float:
        """From the first whole answer's request to the last one's end."""
        begin = min(outcome.sent_ns for outcome in self.outcomes)
        return (max(outcome.done_ns for outcome in self.outcomes) - begin) / 1e9


class Load:
    """Loads one server with one kind of request."""

    def __init__(self, target: LoadTarget, options: LoadOptions) -> None:
        self.target, self.options = target, options

    def warm_up(self, prompts: PromptSource) -> Outcome:
        """Send one request, untimed; BackendError where it fails, as all would."""
        found = asyncio.run(self._one(prompts.take(), self.options.max_tokens))
        if isinstance(found, Failure):
            raise BackendError(
                f"{self.target.url}: the first request failed ({found.kind}): {found.message}"
            )
        return found

    def find_length(self, tokens: int) -> Prompts:
        """Return prompts of about ``tokens`` tokens, the chat template's included.

        Within 2 %, or as near as four requests come. Where the server gives no usage, as many
        words as tokens were wanted.
        """
        words = tokens
        for _ in range(_ROUNDS):
            found = asyncio.run(self._one(Prompts(words).take(), _FEW))
            got = found.prompt_tokens if isinstance(found, Outcome) else None
            if not got or abs(got - tokens) <= _CLOSE * tokens:
                break
            # The first word and the template stay, whatever the rest: a step, not a ratio.
            words = max(1, words + round((tokens - got) * min(1.0, words / got)))
        return Prompts(words, seed=1)

    def run(self, level: Level, prompts: PromptSource, progress: Callable[[], None]) -> Loaded:
        """Load the server; ``progress`` is called at the end of each request."""
        begin, cpu = time.perf_counter(), time.process_time()
        exchanges = asyncio.run(_Running(self, level, prompts, progress).run())
        cpu_share = (time.process_time() - cpu) / (time.perf_counter() - begin)
        read = [read_stream(made) for made in exchanges]
        return Loaded(
            level,
            [found for found in read if isinstance(found, Outcome)],
            [found for found in read if isinstance(found, Failure)],
            cpu_share,
        )

    async def send(
        self, connections: Connections, prompt: str | list[int], max_tokens: int
    ) -> Exchange:
        """Send one request and read its answer."""
        body = self.options.body(prompt, max_tokens)
        request = self.target.request(self.options.route, body, keep=connections.keep)
        return await connections.exchange(request, self.options.timeout)

    async def _one(self, prompt: str | list[int], max_tokens: int) -> Outcome | Failure:
        connections = Connections(self.target, keep=False)
        return read_stream(await self.send(connections, prompt, max_tokens))


class _Running:
    def __init__(
        self, load: Load, level: Level, prompts: PromptSource, progress: Callable[[], None]
    ) -> None:
        self._load, self._level, self._prompts = load, level, prompts
        self._progress = progress
        self._left, self._held = level.requests, 0
        self._made: list[Exchange] = []

    async def run(self) -> list[Exchange]:
        self._end = time.monotonic() + self._level.seconds
        keep = self._load.options.keep_alive
        self._connections = Connections(self._load.target, keep=keep)
        try:
            await self._ask()
        finally:
            self._connections.close()
        return self._made

    async def _ask(self) -> None:
        if self._level.clients is not None:
            count = min(self._level.clients, self._level.requests)
            async with asyncio.TaskGroup() as clients:
                for _ in range(count):
                    clients.create_task(self._client())
        else:
            await self._at_rate(self._level.rate or 0)

    async def _client(self) -> None:
        while self._goes_on():
            await self._request()

    async def _at_rate(self, rate: float) -> None:
        rng = np.random.default_rng(0)
        due = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            open_ones: set[asyncio.Task[None]] = set()
            while self._goes_on():
                if len(open_ones) < MAX_OPEN:
                    task = tasks.create_task(self._request())
                    open_ones.add(task)
                    task.add_done_callback(open_ones.discard)
                else:
                    fault = ("not_sent", f"{MAX_OPEN} requests were open already")
                    self._made.append(Exchange(fault=fault))
                    self._left -= 1
                due += float(rng.exponential(1 / rate))
                await asyncio.sleep(min(due, self._end) - time.monotonic())

    def _goes_on(self) -> bool:
        return self._left > 0 and time.monotonic() < self._end and self._held < MAX_HELD

    async def _request(self) -> None:
        self._left -= 1
        tokens = self._load.options.max_tokens
        made = await self._load.send(self._connections, self._prompts.take(), tokens)
        self._held += made.size
        self._made.append(made)
        self._progress()


def ask_models(target: LoadTarget, seconds: float = 10.0) -> dict[str, Any] | Failure:
    """Return what GET /v1/models says."""
    request = target.request("/v1/models")

    async def ask() -> Exchange:
        return await Connections(target, keep=False).exchange(request, seconds)

    return read_json(asyncio.run(ask()))
