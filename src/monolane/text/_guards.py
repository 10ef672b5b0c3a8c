"""Checks before the operations with which a few characters of template make a gigabyte of text.

Everything else that a template may call gives back no more than it was given, up to a small
factor, and is weighed afterwards. These multiply, so their result is worked out first.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

from monolane.text._budget import LimitError, current, narrow

# A width of five digits, one taken from an argument, or a field inside a field.
_WIDE_FORMAT = re.compile(r"\d{5}|\*|\{[^{}]*\{")
_FIELD = re.compile(r"[%{]")


def multiply(left: Any, right: Any) -> None:
    """Check ``left * right``: of text or a list and a count, or of two integers."""
    if isinstance(left, int) and isinstance(right, int):
        _bits(left.bit_length() + right.bit_length())
    for value, count in ((left, right), (right, left)):
        if isinstance(value, str | list | tuple) and isinstance(count, int):
            current().allow(current().weigh(value) * max(count, 1))


def power(left: Any, right: Any) -> None:
    """Check ``left ** right``."""
    if isinstance(left, int) and isinstance(right, int):
        _bits(left.bit_length() * abs(right))


def _bits(count: int) -> None:
    if count > 4096:
        raise LimitError(f"it makes an integer of {count} bits, more than 4096")


def add(left: Any, right: Any) -> None:
    """Check ``left + right``."""
    if isinstance(left, str | list | tuple):
        current().allow(current().weigh(left) + current().weigh(right))


def form(text: Any, values: Iterable[Any]) -> None:
    """Check a ``%`` or ``str.format`` of the text: no wide fields, and each value once a field."""
    if not isinstance(text, str):
        return
    if _WIDE_FORMAT.search(text):
        raise LimitError(f"it formats with a wide or nested field: {text:.60}")
    fields = len(_FIELD.findall(text))
    widest = 10_000 + sum(current().weigh(value) for value in values)
    current().allow(len(text) + fields * widest)


def join(separator: Any, items: Iterable[Any]) -> list[Any]:
    """Check a join and return its items, which a generator gives only once."""
    found = list(items)
    current().allow(current().weigh(found) + len(str(separator)) * len(found))
    return found


def replace(text: Any, old: Any, new: Any) -> None:
    """Check a replacement of each ``old`` by ``new``."""
    text, old, new = str(text), str(old), str(new)
    current().allow(len(text) + text.count(old) * len(new))


def _widen(text: str, *args: Any, tabsize: Any = 8) -> None:
    """Check a method that pads the text, or each of its tabs, to a width."""
    numbers = [value for value in (*args, tabsize) if isinstance(value, int)]
    narrow(*numbers)
    current().allow(len(text) + (text.count("\t") + 1) * max(numbers))


def _join_method(text: str, items: Iterable[Any]) -> tuple[Any, ...]:
    return (join(text, items),)


def _replace_method(text: str, old: Any, new: Any, count: int = -1) -> None:
    replace(text, old, new)


# The methods of text that a template may use; a guard may hand back other arguments.
_PLAIN_METHODS = """
capitalize casefold count endswith find format format_map index isalnum isalpha isascii isdecimal
isdigit islower isnumeric isspace istitle isupper lower lstrip partition removeprefix removesuffix
rfind rindex rpartition rsplit rstrip split splitlines startswith strip swapcase title upper
"""
TEXT_METHODS: dict[str, Callable[..., tuple[Any, ...] | None] | None] = {
    **dict.fromkeys(_PLAIN_METHODS.split()),
    **dict.fromkeys(("center", "expandtabs", "ljust", "rjust", "zfill"), _widen),
    "join": _join_method,
    "replace": _replace_method,
}
