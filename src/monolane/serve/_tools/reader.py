"""Reads tool calls character by character, as a coroutine that is sent them.

A parser of the whole text, run again with each token, would not do: the result must not depend on
where the text was cut, and arguments leave while they are written. A strict JSON parser would not
do either: arguments pass as the model wrote them, from their first brace to its match.

Qwen's coder models write calls in XML:

    <function=get_weather>
    <parameter=city>
    Bern
    </parameter>
    </function>

A value stands there as plain text. The tool's schema says whether ``2`` is a number or a text, so
such a value leaves only when it is whole.
"""

import contextlib
import json
import string
from collections.abc import Callable, Generator, Mapping
from typing import Any

from monolane.serve._tools.calls import Calls, NotACallError
from monolane.serve._tools.format import ToolFormat
from monolane.serve._tools.types import allowed_types, type_of

_SPACE = " \t\r\n"
_NAME = frozenset(string.ascii_letters + string.digits + "_.:/-")  # characters of a tool's name
_LONGEST_TAG = 200  # characters
_END = "</parameter>"
_SPELLED = {"True": "true", "False": "false", "None": "null"}  # as Python, which models often write

# Returns those characters that it took but that were not its own.
Reader = Generator[None, str, str]
# Returns the character after the value.
Value = Generator[None, str, str]


def read_calls(tool_format: ToolFormat, calls: Calls) -> Reader:
    """Read what follows the begin mark: a call, several, or a list of them."""
    char = yield from _space()
    if char == "[":
        char = yield from _space()
        if char != "{":
            raise NotACallError
        while char != "]":
            yield from _Call(calls).read(char)
            char = yield from _space()
            if char == ",":
                char = yield from _space()
            elif char != "]":
                raise NotACallError
        return (yield from _end(tool_format, None)) if tool_format.end else ""
    if char == "<" and tool_format.end:
        yield from _read_function(calls)
        return (yield from _end(tool_format, None))
    if char != "{" and tool_format.named:
        yield from _read_named(char, calls, tool_format.args)
        return ""
    while True:
        yield from _Call(calls).read(char)
        char = yield from _space()
        if char not in ",;{":
            break
        if char != "{":
            char = yield from _space()
    return (yield from _end(tool_format, char))


def _end(tool_format: ToolFormat, char: str | None) -> Reader:
    """Read the end mark; return what turns out to be something else."""
    if char is None:
        char = yield from _space()
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
        self._add: Callable[[str], None] = self._early.append
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
        char = yield from _space()
        while char != "}":
            if char != '"':
                raise NotACallError
            key = _decoded((yield from _string()))
            if (yield from _space()) != ":":
                raise NotACallError
            char = yield from self._member(key, (yield from _space()))
            if char == ",":
                char = yield from _space()
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
                return (yield from _value(char, lambda _: None))
            else:
                return (yield from _value(char, self._add))
        elif key == "function" and char == "{":
            yield from self._object(char)
        elif key in ("id", "type", "index") or self._calls.inside:
            return (yield from _value(char, lambda _: None))
        else:
            raise NotACallError
        return (yield from _space())

    def _open(self, name: str) -> None:
        calls = self._calls
        if not name or (calls.names is not None and name not in calls.names):
            raise NotACallError
        self._name = name
        calls.open(name)
        calls.add("".join(self._early))
        self._add = calls.add


def _read_named(char: str, calls: Calls, args: str) -> Generator[None, str, None]:
    """Read NAME[ARGS]{...}, NAME[CALL_ID]ID[ARGS]{...} or NAME{...}; ``args`` is that mark."""
    name = ""
    while char in _NAME:
        name += char
        char = yield
    if not name or (calls.names is not None and name not in calls.names):
        raise NotACallError
    if char == args[0]:
        mark = char
        while not mark.endswith(args):
            if len(mark) > 100:
                raise NotACallError
            mark += yield
        char = yield
    if char in _SPACE:
        char = yield from _space()
    if char != "{":
        raise NotACallError
    calls.open(name)
    yield from _balanced(char, calls.add)
    calls.close()


def _space() -> Value:
    """Skip white space; return the character after it."""
    while (char := (yield)) in _SPACE:
        pass
    return char


def _string() -> Value:
    """Read a string whose first quote has been read; return it as it was written, quotes on."""
    read: list[str] = []
    yield from _balanced('"', read.append)
    return "".join(read)


def _value(char: str, add: Callable[[str], None]) -> Value:
    """Read any value, handing on its text; return the character after it and its white space."""
    if char in '{["':
        yield from _balanced(char, add)
        return (yield from _space())
    while char not in ",}]" and char not in _SPACE:
        add(char)
        char = yield
    return (yield from _space()) if char in _SPACE else char


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


def _read_function(calls: Calls) -> Generator[None, str, None]:
    """Read a call whose first "<" has been read, to the end of its ``</function>``."""
    tag = yield from _tag()
    name = tag.removeprefix("function=").strip()
    if not tag.startswith("function=") or not name or not _NAME.issuperset(name):
        raise NotACallError
    calls.open(name)
    schema = calls.schemas.get(name)
    known = schema.get("properties") if isinstance(schema, Mapping) else None
    between = "{"
    while True:
        if (yield from _space()) != "<":
            raise NotACallError
        tag = yield from _tag()
        if tag == "/function":
            break
        if not tag.startswith("parameter="):
            raise NotACallError
        key = tag.removeprefix("parameter=").strip()
        text = yield from _parameter()
        value = _typed(text, known.get(key) if isinstance(known, Mapping) else None, schema)
        calls.add(f"{between}{json.dumps(key, ensure_ascii=False)}: {value}")
        between = ", "
    calls.add("{}" if between == "{" else "}")
    calls.close()


def _tag() -> Value:
    """Read to the end of a tag; return what stands within it."""
    read: list[str] = []
    while (char := (yield)) != ">":
        if char in "<\n" or len(read) == _LONGEST_TAG:
            raise NotACallError
        read.append(char)
    return "".join(read)


def _parameter() -> Value:
    """Read to the end of a value; return it without the line breaks around it."""
    read: list[str] = []
    while True:
        read.append((yield))
        if read[-1] == ">" and "".join(read[-len(_END) :]) == _END:
            text = "".join(read[: -len(_END)])
            return text.removeprefix("\n").removesuffix("\n")


def _typed(text: str, schema: Any, root: Any) -> str:
    """Return the JSON of a value: as it is written if the schema allows its type, else a text.

    Where the schema allows no text either, JSON stays JSON. ``root``: what references point into.
    """
    known = schema if isinstance(schema, Mapping) else {"type": "string"}
    types, listed = allowed_types(known, root), known.get("enum")
    if types != {"string"} and not (isinstance(listed, list) and text in listed):
        plain = _SPELLED.get(text.strip(), text.strip())
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(plain, parse_constant=int)  # which refuses NaN and Infinity
            if type_of(value) in types or "string" not in types:
                return plain
    return json.dumps(text, ensure_ascii=False)
