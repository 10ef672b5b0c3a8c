"""GBNF, llama.cpp's language of grammars, read as llama.cpp reads it.

    root ::= item+                      # a comment
    item ::= "- " [^\\n]{1,80} "\\n" | (".")

A line break ends a rule, except within parentheses and behind ``::=`` and ``|``. llguidance has a
reader, too, but it makes tokens of rules that then take more than they may (``cut``).
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

MAX_NESTED = 50  # parentheses

Ranges = tuple[tuple[int, int], ...]  # of code points, both ends included


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """One character of a few ranges."""

    ranges: Ranges


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """Parts one behind the other; without any, the empty text."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """One of the parts."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """A part, ``least`` times to ``most`` times; None: without an end."""

    part: "Node"
    least: int
    most: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    """What the rule of that name takes."""

    name: str


ROOT = "root"  # the rule that a text follows
Node = Chars | Row | Choice | Repeat | Name
_ANY: Ranges = ((0, sys.maxunicode),)

_NAME = re.compile(r"[\w-]+")
_BLANK = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_COUNT = re.compile(r"\{\s*(\d{1,9})\s*(?:(,)\s*(\d{1,9})?\s*)?\}")
_COUNTS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_CODE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")
_PLAIN = {"t": "\t", "r": "\r", "n": "\n"} | {char: char for char in '\\"[]-'}


def read_gbnf(text: str) -> dict[str, Node]:
    """Return the rules of a grammar, of which one is called root; ValueError says what is wrong."""
    rules = _Reader(text).rules()
    for node in rules.values():
        for name in names_in(node):
            if name not in rules:
                raise ValueError(f"Expected a rule named {name!r}, got none")
    if ROOT not in rules:
        raise ValueError(f"Expected a rule named {ROOT!r}, got none")
    return rules


def parts_of(node: Node) -> tuple[Node, ...]:
    """Return the nodes that a node is made of."""
    if isinstance(node, Repeat):
        return (node.part,)
    return node.parts if isinstance(node, Row | Choice) else ()


def names_in(node: Node) -> Iterator[str]:
    """Yield the names that a node has in it."""
    if isinstance(node, Name):
        yield node.name
    for part in parts_of(node):
        yield from names_in(part)


class _Reader:
    """A text and the place in it that is read next."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def rules(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        self._skip(_BLANK_LINES)
        while self._at < len(self._text):
            name = self._name()
            self._skip(_BLANK)
            if not self._takes("::="):
                raise self._fault("'::='")
            self._skip(_BLANK_LINES)
            found[name] = self._choice(0)
            if self._here() not in ("", "\r", "\n"):
                raise self._fault("a line break or the end behind a rule")
            self._skip(_BLANK_LINES)
        return found

    def _choice(self, depth: int) -> Node:
        if depth > MAX_NESTED:
            raise self._fault(f"at most {MAX_NESTED} nested parentheses")
        parts = [self._row(depth)]
        while self._takes("|"):
            self._skip(_BLANK_LINES)
            parts.append(self._row(depth))
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _row(self, depth: int) -> Node:
        blank = _BLANK_LINES if depth else _BLANK
        parts: list[Node] = []
        while (part := self._part(depth)) is not None:
            self._skip(blank)
            while (counts := self._counts()) is not None:
                part = _repeated(part, *counts)
                self._skip(blank)
            parts.append(part)
        return parts[0] if len(parts) == 1 else Row(tuple(parts))

    def _part(self, depth: int) -> Node | None:
        """Return what stands here, None at the end of a row."""
        if self._takes('"'):
            return self._literal()
        if self._takes("["):
            return self._class()
        if self._takes("."):
            return Chars(_ANY)
        if self._takes("("):
            self._skip(_BLANK_LINES)
            inner = self._choice(depth + 1)
            if not self._takes(")"):
                raise self._fault("')'")
            return inner
        if self._here() in ("<", "!"):
            raise self._fault("texts, classes, names and groups; tokens are not supported")
        if self._here() in ("*", "+", "?", "{"):
            raise self._fault("something to repeat")
        if _NAME.match(self._text, self._at):
            return Name(self._name())
        return None

    def _literal(self) -> Node:
        chars: list[Node] = []
        while not self._takes('"'):
            code = self._char()
            chars.append(Chars(((code, code),)))
        return chars[0] if len(chars) == 1 else Row(tuple(chars))

    def _class(self) -> Node:
        inverse = self._takes("^")
        ranges = []
        while not self._takes("]"):
            first = last = self._char()
            if self._here() == "-" and self._here(1) != "]":
                self._at += 1
                last = self._char()
            if last < first:
                raise self._fault("a range from a lower to a higher character")
            ranges.append((first, last))
        found = _inverse(ranges) if inverse and ranges else tuple(ranges)
        if not found:
            raise self._fault("a character in a class")
        return Chars(found)

    def _counts(self) -> tuple[int, int | None] | None:
        if (sign := self._here()) in _COUNTS:
            self._at += 1
            return _COUNTS[sign]
        if sign != "{":
            return None
        found = _COUNT.match(self._text, self._at)
        if found is None:
            raise self._fault("counts like {2}, {2,} or {2,3}")
        least = int(found[1])
        most = least if found[2] is None else None if found[3] is None else int(found[3])
        if most is not None and most < least:
            raise self._fault("the lower count first")
        self._at = found.end()
        return least, most

    def _char(self) -> int:
        char = self._here()
        if char != "\\":
            if not char:
                raise self._fault("a quote or bracket that closes")
            self._at += 1
            return ord(char)
        if (code := _CODE.match(self._text, self._at)) is not None:
            number = int(code[1] or code[2] or code[3], 16)
            if number > sys.maxunicode or 0xD800 <= number < 0xE000:
                raise self._fault("the number of a character")
            self._at = code.end()
            return number
        if (plain := _PLAIN.get(self._here(1))) is None:
            raise self._fault(r"one of \n \r \t \\ \" \[ \] \- \xHH \uHHHH \UHHHHHHHH")
        self._at += 2
        return ord(plain)

    def _name(self) -> str:
        found = _NAME.match(self._text, self._at)
        if found is None:
            raise self._fault("the name of a rule")
        self._at = found.end()
        return found[0]

    def _here(self, ahead: int = 0) -> str:
        return self._text[self._at + ahead : self._at + ahead + 1]

    def _takes(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _skip(self, blank: re.Pattern[str]) -> None:
        found = blank.match(self._text, self._at)
        assert found is not None  # it may be empty
        self._at = found.end()

    def _fault(self, expected: str) -> ValueError:
        line = self._text.count("\n", 0, self._at) + 1
        rest = self._text[self._at : self._at + 20]
        return ValueError(f"Expected {expected} in line {line}, got {rest or 'the end'!r}")


def _repeated(part: Node, least: int, most: int | None) -> Node:
    if most == 0 or (isinstance(part, Row) and not part.parts):
        return Row(())
    return part if (least, most) == (1, 1) else Repeat(part, least, most)


def _inverse(ranges: list[tuple[int, int]]) -> Ranges:
    found, begin = [], 0
    ends = (sys.maxunicode + 1, sys.maxunicode + 1)
    for first, last in sorted([*ranges, (0xD800, 0xDFFF), ends]):  # half a pair is no character
        if begin < first:
            found.append((begin, first - 1))
        begin = max(begin, last + 1)
    return tuple(found)
