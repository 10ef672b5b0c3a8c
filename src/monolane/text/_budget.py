"""What one rendering of a chat template may cost: steps, characters, seconds, size of a value.

A time limit alone would make a prompt depend on the machine's load, and Python cannot stop a C
call that has begun. So steps and sizes are counted, which is the same everywhere; the clock is
only the last resort between two steps. Most operations give back no more than they were given, up
to a small factor, and their result is weighed afterwards. Those with which a few characters of
template make a gigabyte of text (``multiply`` to ``pad``) are checked *before* they run.
"""

import re
import time
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

from jinja2 import TemplateRuntimeError

STEPS = 300_000  # a loop turn, a call, a filter or a piece of output
STEPS_PER_INPUT = 100  # more for each value in the messages: templates in use take about 3
CHARS = 4_000_000  # and four times what the messages hold
ELEMENTS = 200_000  # likewise, of lists and objects
SECONDS = 5.0  # of the thread's own time: a busy machine is no fault of the template
WIDEST = 10_000  # a number that says how wide, how deep or how often
BITS = 4096  # of an integer
# A width of five digits, one taken from an argument, or a field inside a field.
_WIDE_FORMAT = re.compile(r"\d{5}|\*|\{[^{}]*\{")
_FIELD = re.compile(r"[%{]")


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
        self._last_work = time.thread_time() + SECONDS

    def step(self, chars: int = 0) -> None:
        """Count a step that writes so many characters; LimitError past any limit."""
        self._steps_left -= 1
        self._chars_left -= chars
        if self._steps_left < 0:
            raise LimitError(f"it takes more than {self._steps} steps; does a loop run away?")
        if self._chars_left < 0:
            raise LimitError(f"it writes more than {self.chars} characters")
        # The thread's own clock costs a system call, so the other one is asked first.
        if time.monotonic() > self._deadline and time.thread_time() > self._last_work:
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

    def narrow(self, *numbers: Any) -> None:
        """Refuse a number that would make a value wide out of all proportion."""
        for number in numbers:
            if isinstance(number, int | float) and not -WIDEST <= number <= WIDEST:
                raise LimitError(f"it asks for a width, depth or count of {number}, past {WIDEST}")

    def multiply(self, left: Any, right: Any) -> None:
        """Check ``left * right``: of text or a list and a count, or of two integers."""
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() + right.bit_length())
        for value, count in ((left, right), (right, left)):
            if isinstance(value, str | list | tuple) and isinstance(count, int):
                self.allow(self.weigh(value) * max(count, 1))

    def power(self, left: Any, right: Any) -> None:
        """Check ``left ** right``."""
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * abs(right))

    def add(self, left: Any, right: Any) -> None:
        """Check ``left + right``."""
        if isinstance(left, str | list | tuple):
            self.allow(self.weigh(left) + self.weigh(right))

    def fill(self, text: Any, values: Iterable[Any]) -> None:
        """Check ``%`` or ``str.format`` of a text: no wide fields, and each value once a field."""
        if not isinstance(text, str):
            return
        if _WIDE_FORMAT.search(text):
            raise LimitError(f"it formats with a wide or nested field: {text:.60}")
        widest = WIDEST + sum(self.weigh(value) for value in values)
        self.allow(len(text) + len(_FIELD.findall(text)) * widest)

    def join(self, separator: Any, items: Iterable[Any]) -> list[Any]:
        """Check a join and return its items, which a generator gives only once."""
        found = list(items)
        self.allow(self.weigh(found) + len(str(separator)) * len(found))
        return found

    def replace(self, text: str, old: Any, new: Any) -> None:
        """Check a replacement of each ``old`` by ``new``."""
        self.allow(len(text) + text.count(str(old)) * len(str(new)))

    def pad(self, text: str, places: int, width: int) -> None:
        """Check a padding of so many places of a text to a width."""
        self.allow(len(text) + places * width)

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


def _check_bits(count: int) -> None:
    if count > BITS:
        raise LimitError(f"it makes an integer of {count} bits, more than {BITS}")


_CURRENT: ContextVar[Budget] = ContextVar("budget")


def current() -> Budget:
    """Return the budget of the rendering in progress in this thread."""
    return _CURRENT.get()


def start(data: Any) -> None:
    """Begin the budget of a rendering of this plain data, which must outlive it."""
    _CURRENT.set(Budget(data))
