"""JSON of megabytes as values, read in steps of a millisecond: its texts are decoded apart.

A parser in C keeps every other thread waiting until it is through. What takes it long are texts: 20
to 60 ns for each escape, and a few for each byte that is not ASCII, so 7 MB of them take 70 ms. All
such texts are taken out, decoded slice by slice, and put back.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic_core import from_json

from monolane.serve._run.preparers import next_unit

BLOCK = 1 << 18  # bytes looked at in one step
_SLICE = 1 << 15  # bytes of a text decoded in one step: 0.6 ms where all are escapes
_QUOTE, _BACKSLASH = b'"\\'
_ESCAPE = 6  # bytes of the longest escape, \uXXXX
# What stands for a text: no other text left begins so, since all with escapes are taken out.
_MARK = "\0"

Flags = npt.NDArray[np.bool_]


class Quotes:
    """Finds the quotes around texts, from block to block of any size."""

    def __init__(self) -> None:
        self._escaped = False  # the next byte, by a backslash

    def step(self, block: npt.NDArray[np.uint8]) -> Flags:
        """Return which bytes of a block begin or end a text."""
        quotes: Flags = block == _QUOTE
        return quotes & ~self._escapes(block)

    def _escapes(self, block: npt.NDArray[np.uint8]) -> Flags:
        """Return which bytes are escaped: those behind an odd one of a run of backslashes."""
        escaped = np.zeros(block.size + 1, bool)
        escaped[0] = self._escaped
        places = np.flatnonzero(block == _BACKSLASH)
        if self._escaped and places.size and places[0] == 0:
            places = places[1:]
        if places.size:
            begins = np.diff(places, prepend=-2) != 1
            first = np.maximum.accumulate(np.where(begins, places, 0))
            escaped[places[(places - first) % 2 == 0] + 1] = True
        self._escaped = bool(escaped[-1])
        return escaped[:-1]


def blocks(data: bytes) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Yield the blocks of a body, each with the place of its first byte."""
    for start in range(0, len(data), BLOCK):
        next_unit(BLOCK)
        yield start, np.frombuffer(data, np.uint8, min(BLOCK, len(data) - start), start)


def values_of(data: bytes) -> Any:
    """Return what JSON means; ValueError where it is none. To be called on a thread.

    The number of values is for the caller to bound, as is the depth.
    """
    parts: list[bytes] = []
    texts: list[str] = []
    done = 0
    for begin, end in _texts(data):
        text = data[begin + 1 : end]
        if text.isascii() and b"\\" not in text:
            continue
        parts += [data[done:begin], b'"\\u0000%d"' % len(texts)]
        texts.append("".join(from_json(b'"%b"' % part) for part in _slices(text)))
        done = end + 1
    value = from_json(b"".join([*parts, data[done:]]))
    return _filled(value, texts) if texts else value


def _texts(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the places of both quotes of each text; an odd one at the end is left out."""
    quotes, begin = Quotes(), None
    for start, block in blocks(data):
        for place in (np.flatnonzero(quotes.step(block)) + start).tolist():
            if begin is None:
                begin = place
            else:
                yield begin, place
                begin = None


def _slices(text: bytes) -> Iterator[bytes]:
    """Yield the inside of a text in slices, no escape and no character cut in two."""
    begin = 0
    while len(text) - begin > _SLICE:
        next_unit(_SLICE)
        end = _cut(text, begin, begin + _SLICE)
        yield text[begin:end]
        begin = end
    yield text[begin:]


def _cut(text: bytes, begin: int, end: int) -> int:
    """Return the last place up to ``end`` where a text may be cut; ``begin`` is one."""
    for _ in range(3):
        if text[end] & 0xC0 == 0x80:  # inside a character of UTF-8
            end -= 1
    last = text.rfind(b"\\", max(begin, end - _ESCAPE), end)
    if last < 0:
        return end
    run = text[begin : last + 1]
    if (len(run) - len(run.rstrip(b"\\"))) % 2 == 0:
        last -= 1  # an escaped backslash: its escape begins one before
    # Two escapes may be one character: the first half of a pair begins as \ud8 to \udb.
    halves = text[last : last + 3].lower(), text[last - _ESCAPE : last - _ESCAPE + 3].lower()
    paired = halves == (b"\\ud", b"\\ud") and last - _ESCAPE > begin
    return last - _ESCAPE if paired and text[last + 3] in b"cdefCDEF" else last


def _filled(value: Any, texts: list[str]) -> Any:
    """Return a value with its texts put back."""
    if isinstance(value, str):
        return texts[int(value[1:])] if value.startswith(_MARK) else value
    if isinstance(value, list):
        return [_filled(one, texts) for one in value]
    if isinstance(value, dict):
        return {_filled(name, texts): _filled(one, texts) for name, one in value.items()}
    return value
