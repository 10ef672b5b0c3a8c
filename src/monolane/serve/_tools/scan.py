"""Reads values character by character, and hands them on as JSON.

As coroutines, which are sent the characters: the result must not depend on where a text was cut,
and arguments leave while they are written. So what is handed on is valid JSON as far as it goes.
What has one reading alone is mended: control characters in a text, which must be escaped (RFC 8259,
section 7), Python's words and its single quotes, a comma before a closing bracket, and a backslash
that begins none of JSON's escapes: it stands for itself. Anything else is a NotACallError.
"""

import json
import re
import string
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass

from monolane.serve._tools.calls import NotACallError

SPACE = " \t\r\n"
NAME = frozenset(string.ascii_letters + string.digits + "_.:/-")  # characters of a tool's name
_HEX = frozenset(string.hexdigits)
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_KEY = re.compile(r"[^\s\"'{}\[\](),:=<>]{1,200}")
WORDS = {
    "true": "true",
    "false": "false",
    "null": "null",
    "True": "true",  # as Python, which models often write
    "False": "false",
    "None": "null",
}
_LONGEST_NUMBER = 5_000
_LONGEST_TAG = 200  # characters
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_CODES = {"x": 2, "u": 4, "U": 8}  # hexadecimal digits of Python's escapes

Add = Callable[[str], None]
# Returns those characters that it took but that were not its own.
Reader = Generator[None, str, str]
Step = Generator[None, str, None]


@dataclass(frozen=True, slots=True)
class Notation:
    """How values are written where it is not JSON."""

    bare_keys: bool = False  # of objects
    python: bool = False  # texts between either quote with Python's escapes, and tuples
    quote: str = ""  # texts may stand between two of these, without escapes


JSON = Notation()
PYTHON = Notation(python=True)
GEMMA = Notation(bare_keys=True, quote='<|"|>')


def space() -> Reader:
    """Skip white space; return the character after it."""
    while (char := (yield)) in SPACE:
        pass
    return char


def literal(text: str) -> Step:
    """Read this text."""
    for wanted in text:
        if (yield) != wanted:
            raise NotACallError


def tag() -> Reader:
    """Read to the end of a tag whose "<" has been read; return what stands within it."""
    read: list[str] = []
    while (char := (yield)) != ">":
        if char in "<\n" or len(read) == _LONGEST_TAG:
            raise NotACallError
        read.append(char)
    return "".join(read)


def decoded(text: str) -> str:
    """Return what a text in JSON means; NotACallError for half of a surrogate pair."""
    value = str(json.loads(text))
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NotACallError from None
    return value


def quoted(add: Add) -> Step:
    """Read a text of JSON whose first quote has been read."""
    add('"')
    char = yield
    while char != '"':
        if char != "\\":
            add(escaped(char))
            char = yield
        else:
            char = yield from _escape(add)
    add('"')


def _escape(add: Add) -> Reader:
    """Read what follows a backslash in a text of JSON; return the character after it.

    Models forget to write the second backslash of ``\\d``, ``\\$`` or ``C:\\users``, and escape
    single quotes, which say nothing else.
    """
    char = yield
    if char == "u":
        digits, char = "", (yield)
        while char in _HEX and len(digits) < 4:
            digits, char = digits + char, (yield)
        add(("\\u" if len(digits) == 4 else "\\\\u") + digits)
        return char
    if char == "'":
        add(char)
    else:
        add("\\" + (char if char in '"\\/bfnrt' else "\\" + escaped(char)))
    return (yield)


def text_of(char: str, add: Add) -> Reader:
    """Read a text that begins with either quote; return what was read behind it."""
    if char == "'":
        return (yield from _python_text(char, add))
    yield from quoted(add)
    return ""


def escaped(text: str) -> str:
    """Return a text as it stands in JSON, without its quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def anything(char: str) -> Reader:
    """Skip a value; return the character after it and its white space."""
    if char in "{[":
        yield from container(char, lambda _: None)
    elif char == '"':
        yield from quoted(lambda _: None)
    else:
        if char == "'":
            char = yield from text_of(char, lambda _: None)
        else:
            char = yield from _word(char, lambda _: None)
        return (yield from space()) if char in SPACE else char
    return (yield from space())


def container(char: str, add: Add, notation: Notation = JSON) -> Step:
    """Read an object or a list from its bracket to its match."""
    scan = _Scan(add, notation)
    scan.begin(char)
    yield from scan.rest()


def whole(text: str, notation: Notation = JSON) -> str:
    """Return the JSON of a text that is an object or a list; "" for one that is none."""
    if text[:1] not in ("{", "["):
        return ""
    read: list[str] = []
    steps = container(text[0], read.append, notation)
    next(steps)
    for place, char in enumerate(text[1:], 2):
        try:
            steps.send(char)
        except StopIteration:
            return "".join(read) if place == len(text) else ""
        except NotACallError:
            return ""
    return ""


def members(add: Add, notation: Notation, close: str, colon: str) -> Step:
    """Read the members of an object, whose bracket has been read, to ``close``; keys are bare."""
    scan = _Scan(add, notation)
    scan.frames.append(_Frame(close, "}", colon, bare=True))
    add("{")
    yield from scan.rest()


@dataclass(frozen=True, slots=True)
class _Frame:
    close: str  # as it is written
    json: str  # and in JSON
    colon: str = ""  # of an object
    bare: bool = False  # its keys are


class _Scan:
    """A stack in place of recursion: a model may open any number of brackets."""

    def __init__(self, add: Add, notation: Notation) -> None:
        self._emit, self._notation = add, notation
        self.frames: list[_Frame] = []
        self._want = "first"  # key or value; "key" and "value": behind a comma; "colon"; "next"
        self._comma = ""  # and the white space behind it, until something follows

    def begin(self, char: str) -> None:
        """Open an object or a list."""
        self._add("[" if char == "(" else char)
        if char == "{":
            self.frames.append(_Frame("}", "}", ":", bare=self._notation.bare_keys))
        else:
            self.frames.append(_Frame(")" if char == "(" else "]", "]"))
        self._want = "first"

    def rest(self) -> Step:
        """Read to the end of the first that was opened."""
        char = yield
        while True:
            frame, follows = self.frames[-1], ""
            if char in SPACE:
                if self._comma:
                    self._comma += char
                else:
                    self._emit(char)
            elif char == frame.close and self._want in ("first", "next", "key", "value"):
                if self._want in ("key", "value"):  # a comma before it
                    self._comma = ""
                self._add(frame.json)
                self.frames.pop()
                if not self.frames:
                    return
                self._want = "next"
            elif char == "," and self._want == "next":
                self._comma = ","
                self._want = "key" if frame.colon else "value"
            elif self._want == "next":
                raise NotACallError
            elif self._want == "colon":
                if char != frame.colon:
                    raise NotACallError
                self._add(":" if char == ":" else ": ")
                self._want = "needed"
            elif frame.colon and self._want != "needed":
                follows = yield from self._key(char, frame)
                self._want = "colon"
            else:
                follows = yield from self._value(char)
            char = follows or (yield)

    def _add(self, text: str) -> None:
        self._emit(self._comma + text)
        self._comma = ""

    def _key(self, char: str, frame: _Frame) -> Reader:
        if self._quotes(char):
            return (yield from self._text(char))
        if not frame.bare:
            raise NotACallError
        key = ""
        while char != frame.colon and char not in SPACE:
            key += char
            if not _KEY.fullmatch(key):
                raise NotACallError
            char = yield
        if not key:
            raise NotACallError
        self._add(json.dumps(key, ensure_ascii=False))
        return char

    def _value(self, char: str) -> Reader:
        if char in "{[" or (char == "(" and self._notation.python):
            self.begin(char)
            return ""
        self._want = "next"
        if self._quotes(char):
            return (yield from self._text(char))
        return (yield from _word(char, self._add))

    def _quotes(self, char: str) -> bool:
        notation = self._notation
        return char in ("'", '"') or char == notation.quote[:1] != ""

    def _text(self, char: str) -> Reader:
        if self._notation.python:
            return (yield from _python_text(char, self._add))
        if char in ("'", '"'):
            return (yield from text_of(char, self._add))
        mark = self._notation.quote
        yield from literal(mark[1:])
        self._add('"')
        yield from until(mark, self._emit)
        self._emit('"')
        return ""


def until(mark: str, emit: Add) -> Step:
    """Read a text to a mark, handing it on as JSON without quotes."""
    held = ""
    while held != mark:
        held += yield
        while not mark.startswith(held):
            emit(escaped(held[0]))
            held = held[1:]


def _python_text(quote: str, add: Add) -> Reader:
    """Read a text of Python; return the character after it and its white space.

    LFM2's template writes texts without escapes: a quote ends one only where something may follow.
    """
    add('"')
    char, begun = (yield), False
    while True:
        if char == "\\":
            yield from _python_escape(add)
            char = yield
        elif char == quote:
            gap = ""
            while (char := (yield)) in SPACE:
                gap += char
            if char == quote and not begun and not gap:
                return (yield from _long_text(quote, add))
            if char in ",)]}:":
                add('"')
                return char
            add(escaped(quote + gap))
        else:
            add(escaped(char))
            char = yield
        begun = True


def _long_text(quote: str, add: Add) -> Reader:
    """Read a text between three quotes, of which those before it have been read."""
    quotes = 0
    while quotes < 3:
        char = yield
        if char == quote:
            quotes += 1
            continue
        add(escaped(quote * quotes))
        quotes = 0
        if char == "\\":
            yield from _python_escape(add)
        else:
            add(escaped(char))
    add('"')
    return (yield from space())


def _python_escape(add: Add) -> Step:
    """Read what follows a backslash in a text of Python."""
    char = yield
    if char not in _CODES:
        add(escaped(_ESCAPES.get(char, char if char in "\\'\"" else "\\" + char)))
        return
    digits = ""
    for _ in range(_CODES[char]):
        digits += yield
    if not _HEX.issuperset(digits) or int(digits, 16) > sys.maxunicode:
        raise NotACallError
    add(json.dumps(chr(int(digits, 16)))[1:-1])


def _word(char: str, add: Add) -> Reader:
    """Read a number, or one of the words of JSON or Python; return the character after it."""
    number, read = char in "-0123456789", ""
    while char not in ",)}]" and char not in SPACE:
        read += char
        if number and len(read) > _LONGEST_NUMBER:
            raise NotACallError
        if not number and not any(word.startswith(read) for word in WORDS):
            raise NotACallError
        if number:
            add(char)
        char = yield
    if number:
        if not _NUMBER.fullmatch(read):
            raise NotACallError
    elif read in WORDS:
        add(WORDS[read])
    else:
        raise NotACallError
    return char
