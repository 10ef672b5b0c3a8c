"""What one rendering of a chat template may cost: steps, sizes of values, all values, seconds.

A time limit alone would make a prompt depend on the machine's load, and Python cannot stop a C
call that has begun. So steps and sizes are counted, which is the same everywhere; the clock is
only the last resort between two steps. Most operations give back no more than they were given, up
to a small factor, and their result is weighed afterwards. Those with which a few characters of
template make a gigabyte of text or of list, or take an hour (``multiply`` to ``search``), are
checked *before* they run. What is weighed also counts towards what a rendering may make in all:
frames of macros, and names, can keep any number of values that are small enough each.
"""

import re
import time
from collections.abc import ItemsView, Iterable, KeysView, ValuesView
from contextvars import ContextVar
from typing import Any

from jinja2 import TemplateRuntimeError
from jinja2.runtime import Macro

STEPS = 300_000  # a loop turn, a call, a filter or a piece of output
STEPS_PER_INPUT = 100  # more for each value in the messages: templates in use take about 3
CHARS = 4_000_000  # and four times what the messages hold
ELEMENTS = 200_000  # likewise, of lists and objects
# Bytes of all values that are made, at a byte a character (which has up to 4) and ELEMENT_BYTES an
# element; and characters times elements of the messages: a text may be put together piece by piece.
MADE = 40_000_000
MADE_PER_INPUT = 4_000_000_000  # the most that messages add
ELEMENT_BYTES = 64  # a place in a list, and a small object
SECONDS = 5.0  # of the thread's own time: a busy machine is no fault of the template
WIDEST = 10_000  # a number that says how wide, how deep or how often
BITS = 64  # of an integer: beyond 61, Python's hashes of integers can be made to meet
SPELLED = 24  # characters of a number in a text, with its comma
SEARCHED = 100  # characters of a needle that a whole text may be compared with, everywhere
SCANNED = 100  # elements that are compared in the time of a step
PATH = 64  # attributes of attributes
# A width of five digits, one taken from an argument, or a field inside a field.
_WIDE_FORMAT = re.compile(r"\d{5}|\*|\{[^{}]*\{")
_FIELD = re.compile(r"[%{]")
_WORD = re.compile(r"\S+")
_LINE = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_CONTAINERS = (list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)


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
        self._made = self._made_left = MADE + min(chars * elements, MADE_PER_INPUT)
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

    def allow_elements(self, count: int) -> None:
        """Refuse a list of so many elements."""
        if count > self._elements:
            raise LimitError(f"it makes a value of more than {self._elements} elements")

    def weigh(self, value: Any) -> int:
        """Return the characters in a value, shared parts counted each time; check its elements.

        Every value that a template makes passes here, so none can be a small graph whose text is
        exponential, and all together are bounded.
        """
        if type(value) is str:
            chars = len(value)
            self._made_left -= chars
        elif value is None or value is True or value is False:
            return 0
        else:
            chars, _, made = self._sizes(value)
            self._made_left -= made
        if chars > self.chars:
            self.allow(chars)
        if self._made_left < 0:
            raise LimitError(f"it makes values of more than {self._made} bytes in all")
        return chars

    def spelled(self, value: Any) -> int:
        """Return at least how many characters the text of a value has, but for escapes in it."""
        chars, elements, _ = self._sizes(value)
        return chars + SPELLED * elements

    def _sizes(self, value: Any) -> tuple[int, int, int]:
        """Return characters, elements, and bytes without what is in the messages' own containers.

        LimitError for too many elements.
        """
        chars = elements = shared_chars = shared_elements = 0
        open_values = [value]
        while open_values:
            value = open_values.pop()
            if isinstance(value, str):
                chars += len(value)
            elif id(value) in self._inputs:
                within = self._inputs[id(value)]
                chars, elements = chars + within[0], elements + 1 + within[1]
                shared_chars, shared_elements = (
                    shared_chars + within[0],
                    shared_elements + within[1],
                )
            else:
                elements += 1
                if isinstance(value, int):
                    chars += max(0, value.bit_length() - BITS) // 3  # digits, of one in a message
                elif isinstance(value, Macro):
                    chars += len(value.name)  # its text
                else:
                    open_values += _parts(value)
            self.allow_elements(elements + len(open_values))
        made = chars - shared_chars + ELEMENT_BYTES * (elements - shared_elements)
        return chars, elements, made

    def narrow(self, *numbers: Any) -> None:
        """Refuse a number that would make a value wide out of all proportion."""
        for number in numbers:
            if isinstance(number, int | float) and not -WIDEST <= number <= WIDEST:
                raise LimitError(f"it asks for a width, depth or count of {number}, past {WIDEST}")

    @staticmethod
    def count(*numbers: Any) -> None:
        """Refuse an integer of many bits that the template made, or has in its text."""
        for number in numbers:
            if isinstance(number, int):
                _check_bits(number.bit_length())

    def multiply(self, left: Any, right: Any) -> None:
        """Check ``left * right``: of text or a list and a count, or of two integers."""
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() + right.bit_length())
        for value, count in ((left, right), (right, left)):
            if isinstance(count, int):
                if isinstance(value, str):
                    self.allow(len(value) * count)
                elif isinstance(value, list | tuple):
                    self.allow_elements(len(value) * count)

    def power(self, left: Any, right: Any) -> None:
        """Check ``left ** right``."""
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * abs(right))

    def add(self, left: Any, right: Any) -> None:
        """Check ``left + right`` or ``left - right``."""
        if isinstance(left, str) and isinstance(right, str):
            self.allow(len(left) + len(right))
        elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
            self.allow_elements(len(left) + len(right))
        elif isinstance(left, int) and isinstance(right, int):
            _check_bits(max(left.bit_length(), right.bit_length()) + 1)

    def fill(self, text: Any, values: Iterable[Any]) -> None:
        """Check ``%`` or ``str.format`` of a text: no wide fields, and each value once a field."""
        if not isinstance(text, str):
            return
        if _WIDE_FORMAT.search(text):
            raise LimitError(f"it formats with a wide or nested field: {text:.60}")
        widest = WIDEST + sum(self.spelled(value) for value in values)
        self.allow(len(text) + len(_FIELD.findall(text)) * widest)

    def join(self, separator: Any, items: Iterable[Any]) -> list[Any]:
        """Check a join and return its items, which a generator gives only once."""
        if isinstance(items, str):
            self.allow_elements(len(items))
        found = list(items)
        self.allow(self.weigh(found) + len(str(separator)) * len(found))
        return found

    def split(self, text: str, separator: str | None, lines: bool = False) -> None:
        """Check that a text has not too many parts: between separators, or between spaces."""
        if separator:
            self.allow_elements(text.count(separator) + 1)
        elif lines and len(text) > self._elements:
            self.allow_elements(sum(1 for _ in _LINE.finditer(text)) + 1)
        elif len(text) // 2 > self._elements:
            self.allow_elements(sum(1 for _ in _WORD.finditer(text)))

    def replace(self, text: str, old: Any, new: Any) -> None:
        """Check a replacement of each ``old`` by ``new``."""
        self.allow(len(text) + text.count(str(old)) * len(str(new)))

    def search(self, text: str, needle: Any) -> None:
        """Check a search from the end, or for any of some characters: as long as both together."""
        if isinstance(needle, str) and len(text) * len(needle) > SEARCHED * self.chars:
            raise LimitError(
                f"it looks for a text of {len(needle)} characters in one of {len(text)}"
            )

    def scan(self, values: Any) -> None:
        """Count a search through values, one after the other, as steps."""
        if isinstance(values, list | tuple):
            self._steps_left -= len(values) // SCANNED
        self.step()

    def indent(self, value: Any, width: int, between: int) -> None:
        """Check JSON of a value: so many characters a level on each line, and between elements."""
        self._sizes(value)  # its parts are few enough to be walked
        chars, open_values = 0, [(value, 1)]
        while open_values:
            value, depth = open_values.pop()
            parts = _parts(value)
            chars += (len(parts) + 1) * (width * depth + between)
            open_values += [(part, depth + 1) for part in parts if not isinstance(part, str)]
            self.allow(chars)

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
    return list(value) if isinstance(value, _CONTAINERS) else []


def _check_bits(count: int) -> None:
    if count > BITS:
        raise LimitError(f"it makes an integer of {count} bits, more than {BITS}")


_CURRENT: ContextVar[Budget] = ContextVar("budget")


def current() -> Budget:
    """Return the budget of the rendering in progress in this thread."""
    return _CURRENT.get()


def start_budget(data: Any) -> None:
    """Begin the budget of a rendering of this plain data, which must live as long."""
    _CURRENT.set(Budget(data))
