"""Finds stop strings in a stream of text, wherever the pieces are cut.

Searching the whole text after each piece is quadratic, and searching each piece alone misses a
stop string that spans two. An Aho-Corasick automaton reads each character once, and its state is
exactly what must be held back: the longest end of the text that still may become a stop string.
"""

from collections import deque
from collections.abc import Sequence

from monolane.errors import TextError


class StopStrings:
    """A matcher for one stream.

    The match that is complete first wins; of several that end at the same character, the longest.
    So what is emitted depends on the text alone, never on how it was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Take the stop strings; TextError when one is empty or the argument is a bare string."""
        if isinstance(stops, str) or not all(isinstance(stop, str) and stop for stop in stops):
            raise TextError(f"expected a list of stop strings, none of them empty, got {stops!r}")
        self.matched: str | None = None
        self._next: list[dict[str, int]] = [{}]
        self._back: list[int] = [0]
        self._depth: list[int] = [0]
        self._source: list[str] = [""]  # a stop string that begins with the state's text
        self._found: list[str | None] = [None]
        for stop in stops:
            self._add(stop)
        self._link()
        self._state = 0

    def push(self, text: str) -> tuple[str, bool]:
        """Return the text that is certain to be no part of a stop string, and whether one is found.

        From then on nothing more is emitted; ``matched`` is the stop string.
        """
        if self.matched is not None:
            return "", True
        state = self._state
        for place, char in enumerate(text):
            state = self._step(state, char)
            if (found := self._found[state]) is not None:
                self.matched = found
                return self._emit(text, self._depth[self._state] + place + 1 - len(found)), True
        certain = self._depth[self._state] + len(text) - self._depth[state]
        emit = self._emit(text, certain)
        self._state = state
        return emit, False

    def finish(self) -> str:
        """Return the text that was held back; empty when a stop string was found."""
        held = "" if self.matched is not None else self._emit("", self._depth[self._state])
        self._state = 0
        return held

    def _emit(self, text: str, count: int) -> str:
        """Return the first ``count`` characters of what is held back and then ``text``.

        What is held back is never copied from push to push: it is the beginning of a stop string.
        """
        held = self._depth[self._state]
        return self._source[self._state][: min(count, held)] + text[: max(0, count - held)]

    def _step(self, state: int, char: str) -> int:
        while (target := self._next[state].get(char)) is None and state:
            state = self._back[state]
        return target or 0

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            if char not in self._next[state]:
                self._next[state][char] = len(self._next)
                self._next.append({})
                self._back.append(0)
                self._depth.append(self._depth[state] + 1)
                self._source.append(stop)
                self._found.append(None)
            state = self._next[state][char]
        self._found[state] = stop

    def _link(self) -> None:
        """Point each state back to its longest proper end that is a state too, shortest first."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self._next[state].items():
                self._back[child] = self._step(self._back[state], char)
                # A longer stop string that ends here was found first, so it stays.
                self._found[child] = self._found[child] or self._found[self._back[child]]
                queue.append(child)
