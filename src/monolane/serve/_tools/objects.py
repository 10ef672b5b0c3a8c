"""Calls that are JSON objects: {"name": NAME, "arguments": {...}}."""

import contextlib
import json
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from monolane.serve._grammar.compiler import schema_rules
from monolane.serve._tools.calls import AnswerOverError, Calls, NotACallError
from monolane.serve._tools.scan import (
    SPACE,
    Reader,
    Step,
    anything,
    container,
    decoded,
    literal,
    space,
    text_of,
    whole,
)
from monolane.serve._tools.shape import Shape, in_json

_QUOTES = ("'", '"')
_FENCE = "```"
FENCES = (f"{_FENCE}json\n{{", f"{_FENCE}\n{{")  # how an answer may begin that is a call in a fence
_NAMES = frozenset(("name", "function", "tool_name"))
_ARGUMENTS = frozenset(("arguments", "parameters"))
# What a call may have beside these, without being taken for another object.
_OTHERS = frozenset(("id", "type", "index", "tool_call_id"))


@dataclass(frozen=True, slots=True)
class Objects(Shape):
    """A call is an object; ``name`` and ``key`` are the keys of its name and its arguments."""

    name: str = "name"
    key: str = "arguments"

    def spell(self, name: str, arguments: Any) -> str:
        """Return the object."""
        return in_json({self.name: name, self.key: arguments})

    def rules(self, i: int, name: str, parameters: Any, marks: Mapping[str, int]) -> Iterator[str]:
        """Yield the rules of an object on one line."""
        head = json.dumps(f'{{"{self.name}": {json.dumps(name)}, "{self.key}": ')
        yield f'call_{i}: {head} args_{i} "}}"'
        yield from schema_rules(f"args_{i}", parameters)


@dataclass(frozen=True, slots=True)
class ByName(Shape):
    """A call is an object whose one key is the tool's name: {NAME: {...}}."""

    def spell(self, name: str, arguments: Any) -> str:
        """Return the object."""
        return in_json({name: arguments})

    def rules(self, i: int, name: str, parameters: Any, marks: Mapping[str, int]) -> Iterator[str]:
        """Yield the rules of an object on one line."""
        yield f'call_{i}: {json.dumps(f"{{{json.dumps(name)}: ")} args_{i} "}}"'
        yield from schema_rules(f"args_{i}", parameters)


def read_objects(calls: Calls, by_name: bool) -> Reader:
    """Read calls, with commas, semicolons or white space between, whose first brace is read.

    Returns what was read behind them.
    """
    char = "{"
    while True:
        yield from _Object(calls, by_name).read(char)
        while (char := (yield from space())) == "}":  # of braces doubled, or one too many
            pass
        if char not in ",;{":
            return char
        if char != "{":
            char = yield from space()


def read_fenced(calls: Calls) -> Reader:
    """Read a call with arguments, whose first brace is read, and a fence that ends the answer."""
    one = _Object(calls, by_name=False)
    yield from one.read("{")
    if not one.has_arguments or (yield from space()) != _FENCE[0]:
        raise NotACallError
    yield from literal(_FENCE[1:])
    with contextlib.suppress(AnswerOverError):
        yield from space()
        raise NotACallError
    return ""


def read_list(calls: Calls, by_name: bool) -> Step:
    """Read a list of calls whose bracket and first brace have been read."""
    char = "{"
    while char != "]":
        yield from _Object(calls, by_name).read(char)
        char = yield from space()
        if char == ",":
            char = yield from space()
        elif char != "]":
            raise NotACallError


class _Object:
    """One call: an object with a name and arguments, in any order."""

    def __init__(self, calls: Calls, by_name: bool) -> None:
        self._calls, self._by_name = calls, by_name
        self._name: str | None = None
        self._early: list[str] = []  # arguments that came before the name
        self.has_arguments = False

    def read(self, char: str) -> Step:
        """Read the object that begins with ``char``."""
        yield from self._object(char)
        if self._name is None:
            raise NotACallError
        if not self.has_arguments:
            self._calls.add("{}")
        self._calls.close()

    def _object(self, char: str) -> Step:
        if char != "{":
            raise NotACallError
        while (char := (yield from space())) == "{":  # templates that spell a call in double braces
            pass
        while char != "}":
            key, char = yield from quoted_text(char)
            if (char or (yield from space())) != ":":
                raise NotACallError
            char = yield from self._member(key, (yield from space()))
            if char == ",":
                char = yield from space()
            elif char != "}":
                raise NotACallError

    def _member(self, key: str, char: str) -> Reader:
        if self._by_name and self._name is None and char == "{":
            self._open(key)
            return (yield from self._arguments(char))
        elif key in _NAMES and char in _QUOTES and self._name is None:
            name, char = yield from quoted_text(char)
            self._open(name)
            return char or (yield from space())
        elif key in _ARGUMENTS and not self.has_arguments:
            return (yield from self._arguments(char))
        elif key == "function" and char == "{":
            yield from self._object(char)
        elif key in _OTHERS or self._calls.inside:
            return (yield from anything(char))
        else:
            raise NotACallError
        return (yield from space())

    def _arguments(self, char: str) -> Reader:
        self.has_arguments = True
        if char == "{":
            yield from container(char, self._add)
        elif char in _QUOTES:  # an object within a text, as in the API
            text, char = yield from quoted_text(char)
            self._add(object_in(text))
            return char or (yield from space())
        elif char == "n":  # null
            char = yield from anything(char)
            self._add("{}")
            return char
        else:
            raise NotACallError
        return (yield from space())

    def _add(self, text: str) -> None:
        if self._name is None:
            self._early.append(text)
        else:
            self._calls.add(text)

    def _open(self, name: str) -> None:
        self._calls.open(name)
        self._name = name
        self._calls.add("".join(self._early))


def quoted_text(char: str) -> Generator[None, str, tuple[str, str]]:
    """Read a text that begins with a quote; return it, and what was read behind it."""
    if char not in _QUOTES:
        raise NotACallError
    read: list[str] = []
    follows = yield from text_of(char, read.append)
    if follows and follows in SPACE:
        follows = yield from space()
    return decoded("".join(read)), follows


def object_in(text: str) -> str:
    """Return the JSON of an object that is written in a text; that of an empty text is empty."""
    text = text.strip() or "{}"
    found = whole(text) if text[0] == "{" else ""
    if not found:
        raise NotACallError
    return found
