"""One answer to be made, and where its time went."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from monolane.engine import DraftCounts, Stream
from monolane.serve._tools.parser import ToolParser


@dataclass(slots=True, eq=False)
class Choice:
    """One answer of a request.

    Its moments are time.perf_counter_ns(), 0 if they have not come. The decoding thread writes
    them, others may read.
    """

    index: int
    prompt_ids: tuple[int, ...]
    stream: Stream
    budget: int  # tokens that it may draw
    parser: ToolParser | None = None
    echo: str | None = None  # the text of the prompt, if it is to be part of the answer
    guided: bool = False  # by a constraint
    discard: bool = False  # only the prompt is wanted: what is drawn is left out
    forced: Callable[[], int] = lambda: 0  # tokens that a grammar gave, without a pass for each
    arrived: int = 0
    admitted: int = 0
    first: int = 0
    times: "array[int]" = field(default_factory=lambda: array("q"))  # of each drawn token

    @property
    def last(self) -> int:
        """When the last token was drawn."""
        return self.times[-1] if self.times else 0

    @property
    def drawn(self) -> int:
        """Tokens drawn so far."""
        return len(self.times)

    @property
    def cached(self) -> int:
        """Tokens of the prompt that were taken from kept prefixes, and not read again."""
        return self.stream.timings.cache_n

    @property
    def read(self) -> int | None:
        """Tokens of the prompt that are read by now; None until it is known how many were kept."""
        return len(self.prompt_ids) if self.first else self.stream.read_tokens

    @property
    def drafts(self) -> DraftCounts:
        """Tokens that were drafted."""
        return self.stream.drafts

    @property
    def tokens_per_second(self) -> float:
        """Decode speed: tokens after the first over the time they took; 0 until there are two.

        Without those that a grammar forced: they are fed together, so they tell nothing of speed.
        """
        passes = self.drawn - 1 - self.forced()
        if passes < 1 or self.last <= self.first:
            return 0.0
        return passes / (self.last - self.first) * 1e9

    @property
    def _passes_per_token(self) -> float:
        tokens = self.drawn - 1 - self.forced()
        return 1 - self.drafts.accepted / tokens if tokens > self.drafts.accepted else 1.0

    def timings(self, bytes_per_token: int | None, bandwidth: float | None) -> dict[str, Any]:
        """Return the ``timings`` object of docs/serving.md; ``bandwidth`` in bytes/s."""
        prompt_n, speed = len(self.prompt_ids), self.tokens_per_second
        read = prompt_n - self.cached
        prompt_ns = max(0, self.first - self.admitted)
        mbu = None
        if bytes_per_token and bandwidth:  # streamed once a pass, however many tokens come of it
            mbu = bytes_per_token * speed * self._passes_per_token / bandwidth
        return {
            "prompt_n": prompt_n,
            "prompt_ms": _ms(prompt_ns),
            "prompt_per_second": round(read / prompt_ns * 1e9, 1) if prompt_ns else 0.0,
            "predicted_n": self.drawn,
            "predicted_ms": _ms(self.last - self.first),
            "predicted_per_token_ms": round(1e3 / speed, 4) if speed else 0.0,
            "predicted_per_second": round(speed, 1),
            "cache_n": self.cached,
            "draft_n": self.drafts.tokens,
            "draft_n_accepted": self.drafts.accepted,
            "drafters": {name: dict(counts) for name, counts in self.drafts.by.items()},
            "queue_ms": _ms(max(0, self.admitted - self.arrived)),
            "ttft_ms": _ms(max(0, self.first - self.arrived)),
            "mbu": None if mbu is None else round(mbu, 4),
        }


def _ms(nanoseconds: int) -> float:
    return round(nanoseconds / 1e6, 3)
