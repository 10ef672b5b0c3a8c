"""Where the time of one choice went, as replies tell it."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Clock:
    """Moments of one choice, time.perf_counter_ns(); the decoding thread writes, others may read.

    0 stands for a moment that has not come.
    """

    prompt_n: int
    arrived: int
    admitted: int = 0
    first: int = 0
    last: int = 0
    times: "array[int]" = field(default_factory=lambda: array("q"))  # of each drawn token

    def add(self, times_ns: Sequence[int]) -> None:
        """Note drawn tokens."""
        self.times.extend(times_ns)
        if times_ns:
            self.last = times_ns[-1]

    @property
    def drawn(self) -> int:
        """Tokens drawn so far."""
        return len(self.times)

    @property
    def tokens_per_second(self) -> float:
        """Decode speed: tokens after the first over the time they took; 0 until there are two."""
        if self.drawn < 2 or self.last <= self.first:
            return 0.0
        return (self.drawn - 1) / (self.last - self.first) * 1e9

    def timings(self, bytes_per_token: int | None, bandwidth: float | None) -> dict[str, Any]:
        """Return the ``timings`` object of docs/serving.md; ``bandwidth`` in bytes/s."""
        prompt_ns = max(0, self.first - self.admitted)
        decode_ns = self.last - self.first
        speed = self.tokens_per_second
        mbu = bytes_per_token * speed / bandwidth if bytes_per_token and bandwidth else None
        return {
            "prompt_n": self.prompt_n,
            "prompt_ms": _ms(prompt_ns),
            "prompt_per_second": round(self.prompt_n / prompt_ns * 1e9, 1) if prompt_ns else 0.0,
            "predicted_n": self.drawn,
            "predicted_ms": _ms(decode_ns),
            "predicted_per_token_ms": round(1e3 / speed, 4) if speed else 0.0,
            "predicted_per_second": round(speed, 1),
            "cache_n": 0,
            "draft_n": 0,
            "draft_n_accepted": 0,
            "queue_ms": _ms(max(0, self.admitted - self.arrived)),
            "ttft_ms": _ms(max(0, self.first - self.arrived)),
            "mbu": None if mbu is None else round(mbu, 4),
        }


def _ms(nanoseconds: int) -> float:
    return round(nanoseconds / 1e6, 3)
