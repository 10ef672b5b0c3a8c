"""Prompts of a wanted length, none of which begins as another: no cache of prefixes helps."""

from typing import Protocol

import numpy as np

_NAMES = ("value", "index", "total", "line", "count", "name", "left", "right", "item", "size")


class PromptSource(Protocol):
    """Where the requests of a load get their prompts."""

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
