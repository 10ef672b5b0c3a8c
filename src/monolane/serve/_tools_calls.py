"""Reads tool calls character by character, as a coroutine that is sent them.

Not a parser of the whole text, run again with each token: what it gives must not depend on where
the text was cut, and arguments leave while they are written. Not a strict JSON parser either:
arguments pass as the model wrote them, from their first brace to its match.
"""

import json
from collections.abc import Callable, Generator

from monolane.serve._tools_chars import NAME, SPACE, Reader, Value, space
from monolane.serve._tools_format import ToolFormat
from monolane.serve._tools_found import Calls, NotACallError
from monolane.serve._tools_xml import read_function


def read_calls(tool_format: ToolFormat, calls: Calls) -> Reader:
    """Read what stands behind the begin mark: a call, several, or a list of them."""
    char = yield from space()
    if char == "[":
        char = yield from space()
        if char != "{":
            raise NotACallError
        while char != "]":
            yield from _Call(calls).read(char)
            char = yield from space()
            if char == ",":
                char = yield from space()
            elif char != "]":
                raise NotACallError
        return (yield from _end(tool_format, None)) if tool_format.end else ""
    if char == "<" and tool_format.end:
        yield from read_function(calls)
        return (yield from _end(tool_format, None))
    if char != "{" and tool_format.named:
        yield from _read_named(char, calls)
        return ""
    while True:
        yield from _Call(calls).read(char)
        char = yield from space()
        if char not in ",;{":
            break
        if char != "{":
            char = yield from space()
    return (yield from _end(tool_format, char))


def _end(tool_format: ToolFormat, char: str | None) -> Reader:
    """Read the end mark; return what turns out to be something else."""
    if char is None:
        char = yield from space()
    read = char
    while read != tool_format.end:
        if not tool_format.end.startswith(read):
            return read
        read += yield
    return ""


class _Call:
    """One call: an object with a name and arguments, in any order."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._name: str | None = None
        self._early: list[str] = []  # arguments that came before the name
        self._has_arguments = False

    def read(self, char: str) -> Generator[None, str, None]:
        """Read the object that begins with ``char``."""
        self._calls.between = False
        yield from self._object(char)
        if self._name is None:
            raise NotACallError
        if not self._has_arguments:
            self._calls.add("{}")
        self._calls.close()

    def _object(self, char: str) -> Generator[None, str, None]:
        if char != "{":
            raise NotACallError
        char = yield from space()
        while char != "}":
            if char != '"':
                raise NotACallError
            key = _decoded((yield from _string()))
            if (yield from space()) != ":":
                raise NotACallError
            char = yield from self._member(key, (yield from space()))
            if char == ",":
                char = yield from space()
            elif char != "}":
                raise NotACallError

    def _member(self, key: str, char: str) -> Value:
        if key in ("name", "function") and char == '"' and self._name is None:
            self._open(_decoded((yield from _string())))
        elif key in ("arguments", "parameters") and not self._has_arguments:
            self._has_arguments = True
            if char == '"':  # an object within a text, as in the API
                self._add(_decoded((yield from _string())))
            elif char == "n":
                self._add("{}")
                return (yield from _value(char, _drop))
            else:
                return (yield from _value(char, self._add))
        elif key == "function" and char == "{":
            yield from self._object(char)
        elif key in ("id", "type", "index") or self._calls.inside:
            return (yield from _value(char, _drop))
        else:
            raise NotACallError
        return (yield from space())

    def _open(self, name: str) -> None:
        calls = self._calls
        if not name or (calls.names is not None and name not in calls.names):
            raise NotACallError
        self._name = name
        calls.open(name)
        calls.add("".join(self._early))

    def _add(self, text: str) -> None:
        if self._name is None:
            self._early.append(text)
        else:
            self._calls.add(text)


def _read_named(char: str, calls: Calls) -> Generator[None, str, None]:
    """Read NAME[ARGS]{...}, NAME[CALL_ID]ID[ARGS]{...} or NAME{...}."""
    name = ""
    while char in NAME:
        name += char
        char = yield
    if not name or (calls.names is not None and name not in calls.names):
        raise NotACallError
    if char == "[":
        mark = char
        while not mark.endswith("[ARGS]"):
            if len(mark) > 100:
                raise NotACallError
            mark += yield
        char = yield
    if char in SPACE:
        char = yield from space()
    if char != "{":
        raise NotACallError
    calls.open(name)
    yield from _balanced(char, calls.add)
    calls.close()


def _string() -> Value:
    """Read a string whose first quote has been read; return it as it was written, quotes on."""
    read = ['"']
    while True:
        read.append((yield))
        if read[-1] == "\\":
            read.append((yield))
        elif read[-1] == '"':
            return "".join(read)


def _value(char: str, add: Callable[[str], None]) -> Value:
    """Read any value, handing on its text; return the character behind it and its white space."""
    if char in '{["':
        yield from _balanced(char, add)
        return (yield from space())
    while char not in ",}]" and char not in SPACE:
        add(char)
        char = yield
    return (yield from space()) if char in SPACE else char


def _balanced(char: str, add: Callable[[str], None]) -> Generator[None, str, None]:
    """Read an object, a list or a string to its end, handing on its text."""
    depth, quoted = 0, False
    while True:
        add(char)
        if quoted:
            if char == "\\":
                add((yield))
            elif char == '"':
                quoted = False
        elif char == '"':
            quoted = True
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
        if depth <= 0 and not quoted:
            return
        char = yield


def _decoded(text: str) -> str:
    try:
        value = str(json.loads(text, strict=False))
        value.encode()  # no half of a surrogate pair
    except ValueError:
        raise NotACallError from None
    return value


def _drop(_: str) -> None:
    pass
