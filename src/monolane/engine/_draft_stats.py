"""How many tokens of an answer were drafted, and how many of them the model drew."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from monolane.executor_api import TokenEvent


@dataclass(slots=True)
class DraftCounts:
    """Drafts of one answer, so far."""

    passes: int = 0  # that verified any
    tokens: int = 0
    accepted_at: list[int] = field(default_factory=list)  # by the place in the draft, from 0 on
    by: dict[str, dict[str, int]] = field(default_factory=dict)  # the counts of each drafter

    @property
    def accepted(self) -> int:
        """Drafted tokens that were drawn."""
        return sum(self.accepted_at)

    def add(self, events: Iterable[TokenEvent]) -> None:
        """Count what these tokens tell."""
        for event in events:
            self.passes += event.drafted > 0
            self.tokens += event.drafted
            if event.drafter:
                counts = self.by.setdefault(event.drafter, {"draft_n": 0, "draft_n_accepted": 0})
                counts["draft_n"] += event.drafted
                counts["draft_n_accepted"] += event.accepted > 0
            if event.accepted:
                missing = event.accepted - len(self.accepted_at)
                self.accepted_at += [0] * missing
                self.accepted_at[event.accepted - 1] += 1
