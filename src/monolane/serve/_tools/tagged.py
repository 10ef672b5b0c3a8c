"""Calls in tags, whose values stand there as plain text.

    <function=NAME>            <invoke name="NAME">                <tool_call>NAME
    <parameter=KEY>            <parameter name="KEY">VALUE         <arg_key>KEY</arg_key>
    VALUE                      </parameter>                        <arg_value>VALUE</arg_value>
    </parameter>               </invoke>                           </tool_call>
    </function>

Qwen3-Coder and Seed write the first, MiniMax and DeepSeek V3.2 the second, GLM the third. The
tool's schema says whether ``2`` is a number or a text. A value that is a text in any case leaves
while it is written, others when they are whole. A text may hold anything, also the tag that would
end it: one ends only where another tag may follow. Where a model left the last ``</parameter>``
out, it ends before the call's end, if that is the end of the answer or another call begins there.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from monolane.serve._grammar.compiler import shared_rules
from monolane.serve._grammar.key_order import MAX_KEYS, members
from monolane.serve._tools.calls import AnswerOverError, Calls, NotACallError
from monolane.serve._tools.literal import literal_rule, regex_of
from monolane.serve._tools.objects import Objects
from monolane.serve._tools.scan import (
    NAME,
    PYTHON,
    SPACE,
    WORDS,
    Add,
    Reader,
    container,
    escaped,
    literal,
    space,
    tag,
    whole,
)
from monolane.serve._tools.shape import Shape, in_json
from monolane.serve._tools.types import allowed_types, type_of

# <function=NAME>, <invoke name="NAME">, and the same behind a prefix, such as "｜DSML｜".
_CALL = re.compile(r"(?P<tag>[^\s=\"<>/]*(?:function|invoke))(?:=| name=)\"?(?P<name>[^\"]*)\"?")
_VALUE = re.compile(
    r"(?P<tag>[^\s=\"<>/]*param(?:eter)?)(?:=| name=)\"?(?P<key>[^\"]*)\"?"
    r"(?: string=\"(?P<text>true|false)\")?"
)
_CDATA = ("<![CDATA[", "]]>")  # MiniCPM5 puts them around a text with tags or line breaks
_WITH_CDATA = ("</param>",)
# Keywords of a schema that do not narrow a text, so that it may stand in XML without quotes.
_NOTES = frozenset(("type", "description", "title", "default", "examples"))
_PLAIN_TYPES = frozenset(("integer", "number", "boolean", "object", "array"))
_LONGEST_KEY = 300  # characters
_LONGEST_GAP = 64  # characters of white space between two tags


@dataclass(frozen=True, slots=True)
class Tagged(Shape):
    """``{}`` stands for the name in ``begin``, and for a key in ``key``."""

    begin: str = "<function={}>\n"
    key: str = "<parameter={}>\n"
    end_value: str = "\n</parameter>\n"
    end: str = "</function>"
    texts: str = ""  # what ``key`` has instead where the value is a text

    @property
    def leads(self) -> tuple[str, ...]:
        """A call begins with its tag; where it begins with its name, nothing tells it."""
        begin = self.begin.partition("{}")[0]
        return (begin,) if begin else ()

    def spell(self, name: str, arguments: Any) -> str:
        """Return the tags; of arguments that have no names, an object."""
        if not isinstance(arguments, Mapping):
            return Objects().spell(name, arguments)
        values = "".join(map(self._spelled, arguments.items()))
        return self.begin.format(name) + values + self.end

    def _spelled(self, item: tuple[str, Any]) -> str:
        key, value = item
        text = isinstance(value, str)
        begin = (self.texts if text and self.texts else self.key).format(key)
        return begin + (value if text else in_json(value)) + self.end_value

    def rules(self, i: int, name: str, parameters: Any, marks: Mapping[str, int]) -> Iterator[str]:
        """Yield the rules of a call; of an object where a value could not be told from a text."""
        if not fits(parameters):
            yield from Objects().rules(i, name, parameters, marks)
            return
        properties = parameters.get("properties", {})
        required = [key for key in properties if key in (parameters.get("required") or ())]
        keys = [*required, *(key for key in properties if key not in required)]
        names = [f"value_{i}_{j}" for j in range(len(keys))]
        for rule, key in zip(names, keys, strict=True):
            kind = kind_of(properties[key])
            begin = self.texts if kind != "json" and self.texts else self.key
            value, lines = self._value_rules(properties[key], marks)
            yield f"{rule}: {literal_rule(begin.format(key), marks)} {value}"
            yield from lines
        begin = literal_rule(self.begin.format(name), marks)
        end = literal_rule(self.end, marks)
        if names:
            yield f"call_{i}: {begin} values_{i} {end}"
            yield from members(f"values_{i}", names, len(required))
        elif parameters.get("additionalProperties") is False:
            yield f"call_{i}: {begin} {end}"
        else:
            yield f"call_{i}: {begin} any_value* {end}"
            ways = []
            for key in filter(None, (self.texts, self.key)):
                before, _, behind = key.partition("{}")
                before, behind = literal_rule(before, marks), literal_rule(behind, marks)
                value, lines = self._value_rules({"type": "string"}, marks)
                ways.append(f"{before} KEY {behind} {value}")
                yield from lines
            yield f"any_value: {' | '.join(ways)}"
            yield r"KEY: /[\w.-]+/"

    def _value_rules(self, schema: Any, marks: Mapping[str, int]) -> tuple[str, list[str]]:
        """Return what stands for a value and its end tag, and the rules that it names."""
        kind, end = kind_of(schema), literal_rule(self.end_value, marks)
        if kind == "json":
            value, lines = shared_rules(schema)
            return f"{value} {end}", lines
        if kind == "texts":
            return f"({' | '.join(map(in_json, schema['enum']))}) {end}", []
        mark = self.end_value.rstrip("\n")
        token = next((one for one in marks if one in mark), None)
        if token is not None:  # which is in no text: to the first one, and what is before it
            before, _, behind = self.end_value.partition(token)
            end = literal_rule(token + behind, marks)
            return f"TEXT_VALUE {end}", [rf"TEXT_VALUE: /(.|\n)*{regex_of(before)}/"]
        # To the first end tag, wherever a token cuts it.
        behind = literal_rule(self.end_value.removeprefix(mark), marks)
        return f"text_value {behind}", [rf"text_value[lazy]: /(.|\n)*{regex_of(mark)}/"]

    def read(self, calls: Calls, char: str) -> Reader:
        """Read a call that begins with its name, as GLM writes it."""
        if self.leads:
            raise NotACallError
        name = ""
        while char in NAME:
            name += char
            char = yield
        calls.open(name)
        behind = self.begin.removeprefix("{}").strip()
        if behind:  # a mark between name and arguments
            if char != behind[0]:
                raise NotACallError
            yield from literal(behind[1:])
            char = yield from space()
        elif char in SPACE:
            char = yield from space()
        if char != "<":
            raise NotACallError
        found = "<" + (yield from tag()) + ">"
        key_begin, rest = self.key.split("{}")
        key_end, value_begin = re.findall(r"<[^>]*>", rest)
        end, values = self.end.strip(), _Values(calls, name)
        while found != end:
            if found != key_begin:
                raise NotACallError
            key = yield from _to(key_end)
            if (yield from space()) != "<":
                raise NotACallError
            yield from literal(value_begin[1:])
            tags = (key_begin, end)
            found = yield from values.read(key.strip(), self.end_value.strip(), tags, padded=False)
        values.close()
        return ""


def read_tags(
    calls: Calls, found: str, ends: tuple[str, ...], begins: tuple[str, ...], *, padded: bool
) -> Reader:
    """Read a call whose tag ``found`` has been read, to the end of its last tag.

    Models may leave the last tag out and write one of ``ends``, which is behind all calls.
    ``begins`` are before a call. ``padded``: a line break on each side of a value is none of it.
    """
    call = _CALL.fullmatch(found)
    name = call["name"].strip() if call is not None else ""
    if call is None or not NAME.issuperset(name):
        raise NotACallError
    calls.open(name)
    end, values = f"</{call['tag']}>", _Values(calls, name)
    before, behind = found[: call.start("name")], found[call.end("name") :]
    others = tuple(f"<{before}{other}{behind}>" for other in calls.schemas)
    tail = _Tail(((end,), ends, begins, others)) if ends else None
    char = yield from space()
    if char == "{":  # Functionary's arguments are JSON
        yield from container(char, calls.add)
        if (yield from space()) != "<":
            raise NotACallError
        yield from literal(end[1:])
        calls.close()
        return ""
    if char != "<":
        raise NotACallError
    found = "<" + (yield from tag()) + ">"
    while not found.startswith(end) and found not in ends:
        value = _VALUE.fullmatch(found, 1, len(found) - 1)
        if value is None:
            raise NotACallError
        begin, key = found[: value.start("key")], value["key"].strip()
        text = {"true": True, "false": False}.get(value["text"])
        tags = (begin, end, *ends)
        found = yield from values.read(
            key, f"</{value['tag']}>", tags, padded=padded, text=text, tail=tail
        )
        if found == begin:
            found += (yield from tag()) + ">"
    values.close()
    return found.removeprefix(end)


class _Values:
    """The values of one call, as members of an object."""

    def __init__(self, calls: Calls, name: str) -> None:
        self._calls = calls
        self._schema = calls.schemas.get(name)
        known = self._schema.get("properties") if isinstance(self._schema, Mapping) else None
        self._known = known if isinstance(known, Mapping) else {}
        self._between = "{"

    def close(self) -> None:
        """End the call."""
        self._calls.add("{}" if self._between == "{" else "}")
        self._calls.close()

    def read(
        self,
        key: str,
        end: str,
        tags: tuple[str, ...],
        *,
        padded: bool,
        text: bool | None = None,
        tail: "_Tail | None" = None,
    ) -> Reader:
        """Read a value and ``end``, behind which one of ``tags`` must follow; return that one.

        ``text``: the value is one, or JSON, as its tag says. ``tail``: what ends it, too, where the
        tool has such a value.
        """
        tail = tail if key in self._known else None
        head = f"{self._between}{in_json(key)}: "
        self._between = ", "
        schema = self._known.get(key, {"type": "string"})
        if text is None and allowed_types(schema, self._schema) == {"string"}:
            text = True
        if text and not self._calls.trial and end not in _WITH_CDATA:
            self._calls.add(head + '"')
            emit = lambda part: self._calls.add(escaped(part))  # noqa: E731
            follows = yield from _value(end, tags, padded, emit, tail)
            self._calls.add('"')
            return follows
        read: list[str] = []
        follows = yield from _value(end, tags, padded, read.append, tail)
        found = "".join(read)
        if text is None:
            found = _typed(found, schema, self._schema)
        else:
            found = _typed(found, {"type": "string"} if text else {}, {})
        self._calls.add(head + found)
        return follows


def _to(mark: str) -> Reader:
    """Read to a mark; return what stands before it."""
    read = ""
    while not read.endswith(mark):
        if len(read) > _LONGEST_KEY:
            raise NotACallError
        read += yield
    return read.removesuffix(mark)


@dataclass(frozen=True, slots=True)
class _Tail:
    """The end of a call whose last value has no end tag: ``stages`` follow each other.

    They are: the end of the call, what is behind all calls, what is before another, and its tag.
    The answer may be over instead of the last two.
    """

    stages: tuple[tuple[str, ...], ...]

    def begins(self, text: str, *, over: bool = False) -> bool | None:
        """Tell whether a text is one; None: possibly, with more of it. ``over``: no more comes."""
        for i, marks in enumerate(self.stages):
            rest = text.lstrip(SPACE)
            if len(text) - len(rest) > _LONGEST_GAP:
                return False
            if not rest and over:
                return i == 2  # behind all calls
            mark = next((one for one in marks if rest.startswith(one)), None)
            if mark is None:
                return None if any(one.startswith(rest) for one in marks) else False
            text = rest.removeprefix(mark)
        return True


def _value(end: str, tags: tuple[str, ...], padded: bool, emit: Add, tail: _Tail | None) -> Reader:
    """Read a value and its end; return the tag behind it, or the beginning that was asked for.

    Of a ``tail``: all that was read of it.
    """
    held = yield
    if padded and held == "\n":
        held = yield
    while True:
        found = _ended(held, end, tags, padded)
        if found:
            return found
        behind = held.removeprefix("\n") if padded else held
        closed = tail is not None and behind.startswith("<") and tail.begins(behind)
        if closed:
            return behind
        if found is None or closed is None:
            try:
                held += yield
            except AnswerOverError:
                if tail is not None and tail.begins(behind, over=True):
                    return behind
                raise
            continue
        emit(held[0])
        held = held[1:] or (yield)


def _ended(held: str, end: str, tags: tuple[str, ...], padded: bool) -> str | None:
    """Return which of the tags ends a value; None: possibly one, "": none."""
    read = held.removeprefix("\n") if padded else held
    if not read.startswith(end):
        return None if end.startswith(read) else ""
    rest = read.removeprefix(end)
    follows = rest.lstrip(SPACE)
    if len(rest) - len(follows) > _LONGEST_GAP:
        return ""
    found = next((one for one in tags if follows.startswith(one)), None)
    return found or (None if any(one.startswith(follows) for one in tags) else "")


def _typed(text: str, schema: Any, root: Any) -> str:
    """Return the JSON of a value: as it is written if the schema allows its type, else a text.

    Where the schema allows no text either, JSON stays JSON. ``root``: what references point into.
    """
    if text.startswith(_CDATA[0]) and text.endswith(_CDATA[1]):
        return in_json(text.removeprefix(_CDATA[0]).removesuffix(_CDATA[1]))
    known = schema if isinstance(schema, Mapping) else {"type": "string"}
    types, listed = allowed_types(known, root), known.get("enum")
    if types != {"string"} and not (isinstance(listed, list) and text in listed):
        plain = WORDS.get(text.strip(), text.strip())
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(plain, parse_constant=int)  # which refuses NaN and Infinity
            if type_of(value) in types or "string" not in types:
                return plain
        if "string" not in types and (plain := whole(text.strip(), PYTHON)):
            return plain
    return in_json(text)


def fits(schema: Any) -> bool:
    """Tell whether arguments of this schema can be written as plain text, value by value.

    It must be clear from its schema whether a value is a text, and a text must not be narrowed but
    by a list of the allowed ones.
    """
    known = {"type", "properties", "required", "additionalProperties", "description", "title"}
    if not isinstance(schema, Mapping) or not known.issuperset(schema):
        return False
    properties, required = schema.get("properties", {}), schema.get("required") or []
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        return False  # no schema: the compiler says so
    if not isinstance(properties, Mapping) or len(properties) > MAX_KEYS:
        return False
    return all(re.fullmatch(r"[\w.-]+", key) and kind_of(properties[key]) for key in properties)


def kind_of(schema: Any) -> str | None:
    """Return how a value is written: as "json", "text" or one of "texts"; None: unclear."""
    if not isinstance(schema, Mapping):
        return None
    kind, allowed = schema.get("type"), schema.get("enum")
    if isinstance(kind, str) and kind in _PLAIN_TYPES:  # a list of types may allow a text, too
        return "json"
    if allowed is None:
        return "text" if kind == "string" and _NOTES.issuperset(schema) else None
    if not _NOTES.issuperset(schema.keys() - {"enum"}) or not isinstance(allowed, list):
        return None
    if all(isinstance(value, str) and value.strip() for value in allowed):
        return "texts"
    return None if any(isinstance(value, str) for value in allowed) else "json"
