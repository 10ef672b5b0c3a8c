"""Who may decode when: the stated policy of mixed load, see docs/mixed-load.md."""

import re
from dataclasses import dataclass

from monolane.errors import RequestError

MAX_SHARED = 64  # sequences of one engine


@dataclass(frozen=True, slots=True)
class Policy:
    """How many sequences advance together, and in which order the others wait.

    ``short_first``: by arrival plus what the answer is expected to take, so that a long one is
    overtaken only by those that would be done before it would have begun. Else first come, first
    served.
    """

    slots: int = 1
    short_first: bool = False

    @staticmethod
    def parse(text: str) -> "Policy":
        """Read "latency", "latency:short-first", "share:K" or "share:K:short-first"."""
        found = re.fullmatch(r"(?:latency|share:(\d{1,3}))(:short-first)?", text)
        slots = int(found[1] or 1) if found else 0
        if not found or not 1 <= slots <= MAX_SHARED:
            raise RequestError(
                f"policy: expected 'latency' or 'share:K' with K from 1 to {MAX_SHARED}, either "
                f"with ':short-first' behind it, got {text!r:.80}"
            )
        return Policy(slots, bool(found[2]))

    def __str__(self) -> str:
        name = "latency" if self.slots == 1 else f"share:{self.slots}"
        return name + ":short-first" * self.short_first
