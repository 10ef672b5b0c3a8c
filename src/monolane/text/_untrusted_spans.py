"""Marks what users wrote, so that a rendered chat tells their ``</s>`` from the template's.

The obvious ways fail. Removing such spellings changes what was said. Encoding each message apart
breaks tokens that span the border, and a template may trim, slice or nest a message. Wrapping
messages in sentinels makes ``trim`` blind. So the first character of a spelling, and of what may
become one with the text that follows, is replaced by one private character before rendering: same
length, not white space, in no spelling. A chat without such spellings is rendered as it is.
"""

import json
from collections.abc import Iterator
from typing import Any

from monolane.errors import TextError
from monolane.text._control_token_search import Spellings

# Noncharacters are set aside for such use; should a text hold all of them, a private plane follows.
# U+FDD0 and U+FDD1 frame the names of control tokens (_twin), U+FDEF ends a message (_template).
_CANDIDATES = (*range(0xFDD2, 0xFDEF), *range(0xF0000, 0xF1000))


class Marks:
    """The stand-in characters of one rendering: ``chars`` maps each to what it stands for."""

    def __init__(self, values: Any, others: frozenset[str] = frozenset()) -> None:
        """Take the data that will be rendered: no character in it, or of others, can be a mark."""
        used = others.union(*_texts(values))
        self._free = (chr(code) for code in _CANDIDATES if chr(code) not in used)
        self._mark_of: dict[str, str] = {}
        self.chars: dict[str, str] = {}

    def put(self, value: Any, spellings: Spellings) -> Any:
        """Return the data with each of the spellings in it marked."""
        if isinstance(value, str):
            return self._put_text(value, spellings)
        if isinstance(value, list):
            return [self.put(item, spellings) for item in value]
        if isinstance(value, dict):
            return {
                self._put_text(key, spellings): self.put(item, spellings)
                for key, item in value.items()
            }
        return value

    def unescape(self, text: str) -> str:
        """Return the text with marks that ``tojson(ensure_ascii=true)`` has escaped put back."""
        for mark in self.chars:
            text = text.replace(json.dumps(mark)[1:-1], mark)
        return text

    def _put_text(self, text: str, spellings: Spellings) -> str:
        starts = spellings.starts(text)
        if not starts:
            return text
        parts, end = [], 0
        for start in starts:
            parts += [text[end:start], self._mark(text[start])]
            end = start + 1
        return "".join((*parts, text[end:]))

    def _mark(self, char: str) -> str:
        if char not in self._mark_of:
            mark = next(self._free, None)
            if mark is None:
                raise TextError("expected messages that leave a private character unused")
            self._mark_of[char] = mark
            self.chars[mark] = char
        return self._mark_of[char]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
