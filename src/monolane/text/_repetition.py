"""An answer that says the same over and over, noticed while it comes.

The tail of the drawn tokens is held against itself. A tail of n tokens has the period p if each of
them is the one p tokens before it; the smallest p of every n comes of one pass over the tail from
its end: Knuth, Morris, Pratt, "Fast Pattern Matching in Strings", 1977. That pass is made once per
32 tokens, so a token costs about 32 comparisons, some 10 µs, however long the answer is.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_EVERY = 32  # tokens between two looks
_TAIL = 1024  # tokens that are looked at
# What repeats must fill 256 tokens and come 4 times. Legitimate repetition is shorter: an empty
# Sudoku of 9 equal rows has 189 tokens, the rule below a table's head 50, "ha" a hundred times 100
# to 200; and what is longer is no four times the same in a row: a song's chorus has verses between.
_LENGTH = 256
_TIMES = 4


class Loop(NamedTuple):
    """What repeats at the end of an answer: how long it is, and how often it came."""

    period: int  # tokens
    times: int


class Repetition:
    """Is told the tokens of one answer as they come."""

    def __init__(self) -> None:
        self._tail: deque[int] = deque(maxlen=_TAIL)
        self._unseen = 0  # tokens since the last look

    def add(self, token_ids: Iterable[int]) -> Loop | None:
        """Take the next tokens; return the loop that they are caught in, if there is one."""
        for token_id in token_ids:
            self._tail.append(token_id)
            self._unseen += 1
        if self._unseen < _EVERY:
            return None
        self._unseen = 0
        return find_loop(tuple(self._tail))


def find_loop(token_ids: Sequence[int]) -> Loop | None:
    """Return what fills the end of some tokens again and again, the longest such end of them."""
    back = token_ids[::-1]
    borders = [0] * len(back)  # of each beginning, the longest shorter one that also ends it
    found = None
    border = 0
    for end in range(1, len(back)):
        while border and back[end] != back[border]:
            border = borders[border - 1]
        border += back[end] == back[border]
        borders[end] = border
        length, period = end + 1, end + 1 - border
        if length >= max(_LENGTH, _TIMES * period):
            found = Loop(period, length // period)
    return found
