"""What one rendering of a chat template may cost: steps, characters, seconds, size of a value.

A time limit alone would make a prompt depend on the machine's load, and Python cannot stop a C
call that has begun. So steps and sizes are counted, which is the same everywhere and checked
*before* a value is made; the clock is only the last resort between two steps.
"""

import time
from contextvars import ContextVar
from typing import Any

from jinja2 import TemplateRuntimeError

STEPS = 300_000  # a loop turn, a call, a filter or a piece of output
STEPS_PER_INPUT = 100  # more for each value in the messages: templates in use take about 3
CHARS = 4_000_000  # and four times what the messages hold
ELEMENTS = 200_000  # likewise, of lists and objects
SECONDS = 5.0
WIDEST = 10_000  # a number that says how wide, how deep or how often


class LimitError(TemplateRuntimeError):
    """A template asked for more than its budget."""


class Budget:
    """The counters of one rendering; ``chars`` also bounds the size of any single value."""

    def __init__(self, data: Any) -> None:
        """Measure the plain data that is rendered: long chats may cost more than short ones."""
        self._inputs: dict[int, tuple[int, int]] = {}
        chars, elements = self._measure(data)
        self.chars = CHARS + 4 * chars
        self._elements = ELEMENTS + 4 * elements + chars  # a text may be split
        self._steps = self._steps_left = STEPS + STEPS_PER_INPUT * elements
        self._chars_left = self.chars
        self._deadline = time.monotonic() + SECONDS

    def step(self, chars: int = 0) -> None:
        """Count a step that writes so many characters; LimitError past any limit."""
        self._steps_left -= 1
        self._chars_left -= chars
        if self._steps_left < 0:
            raise LimitError(f"it takes more than {self._steps} steps; does a loop run away?")
        if self._chars_left < 0:
            raise LimitError(f"it writes more than {self.chars} characters")
        if time.monotonic() > self._deadline:
            raise LimitError(f"it takes longer than {SECONDS} seconds")

    def allow(self, size: int) -> None:
        """Refuse a value of so many characters."""
        if size > self.chars:
            raise LimitError(f"it makes a value of {size} characters, more than {self.chars}")

    def weigh(self, value: Any) -> int:
        """Return the characters in a value, shared parts counted each time; check its elements.

        Every container that a template makes passes here, so none can be a small graph whose text
        is exponential.
        """
        chars = elements = 0
        open_values = [value]
        while open_values:
            value = open_values.pop()
            if isinstance(value, str):
                chars += len(value)
            elif id(value) in self._inputs:
                chars, elements = chars + self._inputs[id(value)][0], elements + 1
                elements += self._inputs[id(value)][1]
            else:
                elements += 1
                open_values += _parts(value)
            if elements + len(open_values) > self._elements:
                raise LimitError(f"it makes a value of more than {self._elements} elements")
        self.allow(chars)
        return chars

    def _measure(self, value: Any) -> tuple[int, int]:
        """Return characters and elements of plain data, and note those of each container in it.

        A template that builds lists of messages would have each message walked again and again.
        The caller keeps the data alive, so an id stays that of its container.
        """
        if isinstance(value, str):
            return len(value), 0
        sizes = [self._measure(part) for part in _parts(value)]
        total = sum(size[0] for size in sizes), len(sizes) + sum(size[1] for size in sizes)
        if isinstance(value, dict | list):
            self._inputs[id(value)] = total
        return total


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return list(value) if isinstance(value, list | tuple | set | frozenset) else []


_CURRENT: ContextVar[Budget] = ContextVar("budget")


def current() -> Budget:
    """Return the budget of the rendering in progress in this thread."""
    return _CURRENT.get()


def start(data: Any) -> None:
    """Begin the budget of a rendering of this plain data, which must outlive it."""
    _CURRENT.set(Budget(data))


def narrow(*numbers: Any) -> None:
    """Refuse a number that would make a value wide out of all proportion."""
    for number in numbers:
        if isinstance(number, int | float) and not -WIDEST <= number <= WIDEST:
            raise LimitError(f"it asks for a width, depth or count of {number}, past {WIDEST}")
