"""What a drafter would have got on a text that is known: passes, widths, tokens taken.

A pass is given the draft, and takes of it what the text goes on with, and one token more, which it
draws itself. So the passes are those that an executor would run, whatever a pass costs.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from monolane._core import SuffixDrafter

Ids = npt.NDArray[np.int32]
Chances = npt.NDArray[np.float32]

RING = 1 << 16  # tokens that our drafter remembers


class Drafter(Protocol):
    """One sequence: its prompt, then in turns a draft and what was drawn."""

    def draft(self, most: int) -> tuple[Ids, Chances]:
        """Return at most so many tokens, and of each how likely it is taken after the others."""

    def observe(self, tokens: Ids) -> None:
        """Take what the model drew."""


def ours(prompt: Ids) -> Drafter:
    """Return our drafter behind a prompt."""
    drafter = SuffixDrafter(RING)
    drafter.append(prompt)
    return drafter


class _Arctic:
    """Snowflake's suffix tree as its own speculation drives it: depth 64, least probability 0.1.

    ``factor`` is how many tokens it may draft for each one that matched; 1 is its own setting.
    """

    def __init__(self, prompt: Ids, factor: float) -> None:
        self._core: Any = import_module("_C")
        self._tree = self._core.SuffixTree(64)
        self._tree.extend_ndarray(0, prompt)
        self._text = prompt
        self._factor = factor

    def draft(self, most: int) -> tuple[Ids, Chances]:
        last = self._text[-64:].copy()
        found = self._tree.speculate_ndarray(last, most, self._factor, 0.0, 0.1, False)
        chances = np.array(found.probs, np.float32)
        chances[1:] /= np.maximum(chances[:-1], 1e-9)  # those of whole prefixes
        return np.array(found.token_ids, np.int32), chances

    def observe(self, tokens: Ids) -> None:
        self._tree.extend_ndarray(0, tokens)
        self._text = np.concatenate([self._text, tokens])


def arctic(factor: float = 1.0) -> Callable[[Ids], Drafter]:
    """Return a maker of the outside anchor; its module, _C, has to be on Python's path."""
    return lambda prompt: _Arctic(prompt, factor)


@dataclass
class Replay:
    """Counts of one or more replayed texts."""

    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    widths: Counter[int] = field(default_factory=Counter)  # width -> passes
    seconds: float = 0.0  # in the drafter

    @property
    def passes(self) -> int:
        return self.widths.total()

    def add(self, other: "Replay") -> None:
        """Count another text too."""
        self.tokens += other.tokens
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.widths += other.widths
        self.seconds += other.seconds

    def milliseconds(self, costs: Sequence[float]) -> float:
        """Return what all of it takes, ``costs`` being ms by width, drafting included."""
        return sum(costs[w] * n for w, n in self.widths.items()) + self.seconds * 1e3


def replay(
    make: Callable[[Ids], Drafter],
    prompt: Ids,
    answer: Ids,
    budget: int,
    costs: Sequence[float] | None = None,
) -> Replay:
    """Return what a drafter gets of an answer, with passes of at most ``budget`` drafted tokens.

    costs    ms of a pass by width: a draft is cut where one more token promises no more tokens a
             second; None: drafts are as long as they come
    """
    drafter, found, at = make(prompt), Replay(tokens=len(answer)), 0
    while at < len(answer):
        begin = time.perf_counter()
        tokens, chances = drafter.draft(min(budget, len(answer) - at - 1))
        found.seconds += time.perf_counter() - begin
        if costs is not None:
            tokens = tokens[: worth(chances, costs)]
        ahead = answer[at : at + len(tokens)]
        taken = int(np.argmin(np.append(tokens == ahead, False)))
        found.widths[len(tokens) + 1] += 1
        found.drafted += len(tokens)
        found.accepted += taken
        begin = time.perf_counter()
        drafter.observe(answer[at : at + taken + 1])
        found.seconds += time.perf_counter() - begin
        at += taken + 1
    return found


def worth(chances: Chances, costs: Sequence[float]) -> int:
    """Return how many drafted tokens to put into a pass: most tokens expected for the time."""
    expected = np.concatenate([[1.0], 1.0 + np.cumsum(np.cumprod(chances, dtype=np.float64))])
    return int(np.argmax(expected / np.asarray(costs[1 : len(expected) + 1])))
