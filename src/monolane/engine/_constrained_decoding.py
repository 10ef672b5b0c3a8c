"""What an answer must look like, said token by token while it is decoded.

Not a list of the tokens so far for each mask: a grammar keeps its own place, and is told of each
token once. Not a callback of the decode thread either: the thread that reads the answer works out
the mask of the next token, while the pass runs that needs it.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from monolane.engine._shared_executor import Request
from monolane.errors import RequestError
from monolane.executor_api import Guide, TokenEvent


class Constraint(Protocol):
    """The place of one answer in its grammar; for one request, and one thread at a time.

    Where an answer may end, the mask allows a token that ends it; where it must, there is no mask.
    """

    def step(self, token_id: int | None) -> Guide:
        """Take the token drawn under the last guide, None at first; say what may follow it.

        The forced tokens of a guide count as taken. A token that ends the answer is not told.
        """


class Guidance:
    """Keeps one guided request supplied: a guide for each draw, as soon as it can be said.

    ``singly``: forced tokens are drawn one by one, each the only one that its mask allows. The
    same tokens come of it, with their log-probabilities, at a pass each.
    """

    def __init__(
        self,
        constraint: Constraint,
        request: Request,
        vocab: int,
        stop_ids: frozenset[int],
        *,
        singly: bool,
    ) -> None:
        self._constraint, self._request = constraint, request
        self._vocab, self._stop_ids, self._singly = vocab, stop_ids, singly
        self._guides: deque[Guide] = deque()  # to be said, before the constraint is asked again
        self._owed = 0  # tokens that the last guide said brings, and that have not been seen
        self._ends = False  # with the last of those

    def begin(self) -> bool:
        """Say what the answer may begin with; return whether it is over, with no token at all."""
        return self._go_on(None)

    def follow(self, events: Sequence[TokenEvent]) -> bool:
        """Say what may follow these tokens; return whether the answer is over with the last."""
        self._owed -= len(events)
        token_id = events[-1].token_id
        if self._owed > 0 or token_id in self._stop_ids:
            return False
        return self._ends or self._go_on(token_id)

    def _go_on(self, token_id: int | None) -> bool:
        if not self._guides:
            guide = self._checked(self._constraint.step(token_id))
            self._guides += self._split(guide) if self._singly else [guide]
        guide = self._guides.popleft()
        self._owed = len(guide.forced) + (guide.mask is not None)
        self._ends = guide.mask is None
        if self._owed:
            self._request.guide(guide)
        return not self._owed

    def _split(self, guide: Guide) -> list[Guide]:
        return [*(Guide(self._only(token)) for token in guide.forced), Guide(guide.mask)]

    def _only(self, token_id: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
        mask = np.zeros(self._words, np.uint32)
        mask[token_id // 32] = 1 << token_id % 32
        return mask

    @property
    def _words(self) -> int:
        return -(-self._vocab // 32)

    def _checked(self, guide: Guide) -> Guide:
        """Refuse a guide that no executor could follow, before it reaches one."""
        wrong = [token for token in guide.forced if not 0 <= token < self._vocab]
        if wrong:
            raise RequestError(
                f"constraint: expected forced tokens from 0 to {self._vocab - 1}, got {wrong[0]}"
            )
        mask = guide.mask
        if mask is None:
            return guide
        if mask.dtype != np.uint32 or mask.shape != (self._words,):
            raise RequestError(
                f"constraint: expected a mask of {self._words} uint32 words, "
                f"got {mask.dtype} {mask.shape}"
            )
        beyond = self._words * 32 - self._vocab  # bits of the last word that are no tokens
        last = int(mask[-1]) & 0xFFFFFFFF >> beyond
        if not last and not mask[:-1].any():
            raise RequestError("constraint: expected a mask that allows a token, got none")
        return guide
