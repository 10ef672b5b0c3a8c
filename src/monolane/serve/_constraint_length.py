"""``min_tokens``: no token that would end the answer before so many have come."""

import numpy as np
import numpy.typing as npt

from monolane.engine import Constraint, Guide


class AtLeast:
    """Keeps an answer from ending too soon; within ``inner``, if the answer has another constraint.

    Where nothing but the end may follow, as behind the last brace of a JSON value, it ends: a
    grammar comes first.
    """

    def __init__(
        self, count: int, ends: frozenset[int], vocab: int, inner: Constraint | None
    ) -> None:
        self._left, self._inner = count, inner
        words = -(-vocab // 32)
        self._all = np.full(words, 0xFFFFFFFF, np.uint32)
        self._on = self._all.copy()  # [words] all but those that end the answer
        for token in ends:
            if token < vocab:
                self._on[token // 32] &= ~np.uint32(1 << token % 32)
        self._tail = np.uint32(0xFFFFFFFF >> (words * 32 - vocab))  # of the last word: tokens

    def step(self, token_id: int | None) -> Guide:
        """Take the token drawn, None at first; say what may follow it."""
        self._left -= token_id is not None
        guide = Guide(self._all) if self._inner is None else self._inner.step(token_id)
        self._left -= len(guide.forced)
        if guide.mask is None or self._left <= 0:
            return guide
        mask = guide.mask & self._on
        return Guide(mask, guide.forced) if self._any(mask) else guide

    def _any(self, mask: npt.NDArray[np.uint32]) -> bool:
        return bool(mask[:-1].any() or mask[-1] & self._tail)
