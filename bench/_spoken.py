"""Texts decoded by the engine's own loop, with speculation off and on, in turns.

A model with real weights says what it says, and has to say the same either way. One with random
weights is made to draw a known answer (``Executor.script``): passes, drafts and times are real, and
the drawn token is replaced after the draw.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from _replay import Ids

from monolane.cpu import CpuExecutor
from monolane.engine import DraftModel, ModelFiles
from monolane.executor_api import AUTO_DRAFTS, Advance, TokenEvent


class Speaker:
    """A model on this machine, with a slot that keeps the prompt and one that goes on from it."""

    def __init__(self, folder: Path, dtype: str, context: int, draft: str | None = None) -> None:
        files = ModelFiles.open(folder)
        weights, tokenizer = files.weights(), files.tokenizer()
        found = None if draft is None else DraftModel.open(draft, files, weights, tokenizer)
        self.executor = CpuExecutor(
            weights,
            dtype,
            context=context,
            slots=2,
            draft=None if found is None else found.weights,
            draft_dtype="auto" if found is None else found.dtype or dtype,
        )

    @property
    def cases(self) -> tuple[str, ...]:
        """Who may draft: nobody last; with a draft model or heads, each drafter alone, too."""
        drafter = self.executor.drafter
        return ("auto", "suffix", drafter, "off") if drafter else ("auto", "off")

    def read(self, prompt: Ids) -> None:
        """Feed a prompt but for its last token."""
        self.executor.truncate(0, 0)
        self._epoch(Advance(slot=0, token_ids=tuple(prompt[:-1].tolist()), budget=1))

    def speak(
        self, prompt: Ids, tokens: int, case: str, script: Sequence[int] | None
    ) -> list[TokenEvent]:
        """Go on from the prompt; the times of the tokens are in the events."""
        known = [] if script is None else [*prompt.tolist(), *script]
        self.executor.copy(0, 1)
        self.executor.script(1, draws=known)
        return self._epoch(
            Advance(
                slot=1,
                token_ids=(int(prompt[-1]),),
                budget=tokens,
                drafts=0 if case == "off" else AUTO_DRAFTS,
                drafter="auto" if case == "off" else case,
                history=prompt[:-1].astype(np.uint32),
                prompt=len(prompt),
            )
        )

    def _epoch(self, advance: Advance) -> list[TokenEvent]:
        self.executor.start([advance])
        over, events = False, []
        while not over:
            over = self.executor.read(1.0)
            events += self.executor.take()
        return events


def tokens_per_second(events: Sequence[TokenEvent]) -> float:
    """Return the speed from the first token to the last: the first holds the epoch's start."""
    return (len(events) - 1) / (events[-1].time_ns - events[0].time_ns) * 1e9
