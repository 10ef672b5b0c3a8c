"""Calls spelled in XML, as Qwen's coder models write them.

    <function=get_weather>
    <parameter=city>
    Bern
    </parameter>
    </function>

A value stands there as plain text, so whether ``2`` is a number or a text is for the tool's schema
to say, and it leaves only when it is whole.
"""

import json
from collections.abc import Generator, Mapping
from typing import Any

from monolane.serve._tools_chars import NAME, Value, space
from monolane.serve._tools_found import Calls, NotACallError

_LONGEST = 200  # characters of a tag
_END = "</parameter>"
_SPELLED = {"True": "true", "False": "false", "None": "null"}  # as Python, which they often follow


def read_function(calls: Calls) -> Generator[None, str, None]:
    """Read a call whose first "<" has been read, to the end of its ``</function>``."""
    tag = yield from _tag()
    name = tag.removeprefix("function=").strip()
    if not tag.startswith("function=") or not name or not NAME.issuperset(name):
        raise NotACallError
    calls.open(name)
    schema = calls.schemas.get(name)
    known = schema.get("properties") if isinstance(schema, Mapping) else None
    between = "{"
    while True:
        if (yield from space()) != "<":
            raise NotACallError
        tag = yield from _tag()
        if tag == "/function":
            break
        if not tag.startswith("parameter="):
            raise NotACallError
        key = tag.removeprefix("parameter=").strip()
        text = yield from _text()
        value = _value(text, known.get(key) if isinstance(known, Mapping) else None)
        calls.add(f"{between}{json.dumps(key, ensure_ascii=False)}: {value}")
        between = ", "
    calls.add("{}" if between == "{" else "}")
    calls.close()


def _tag() -> Value:
    """Read to the end of a tag; return what stands within it."""
    read: list[str] = []
    while (char := (yield)) != ">":
        if char in "<\n" or len(read) == _LONGEST:
            raise NotACallError
        read.append(char)
    return "".join(read)


def _text() -> Value:
    """Read to the end of a value; return it without the line breaks around it."""
    read: list[str] = []
    while True:
        read.append((yield))
        if read[-1] == ">" and "".join(read[-len(_END) :]) == _END:
            text = "".join(read[: -len(_END)])
            return text.removeprefix("\n").removesuffix("\n")


def _value(text: str, schema: Any) -> str:
    """Return the JSON of a value: a text where the schema wants one, or it is nothing else."""
    kind = schema.get("type") if isinstance(schema, Mapping) else "string"
    if kind == "string" or _is_one_of(text, schema):
        return json.dumps(text, ensure_ascii=False)
    plain = _SPELLED.get(text.strip(), text.strip())
    try:
        json.loads(plain, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return plain


def _is_one_of(text: str, schema: Any) -> bool:
    allowed = schema.get("enum") if isinstance(schema, Mapping) else None
    return isinstance(allowed, list) and text in allowed


def _refuse(name: str) -> Any:
    raise ValueError(name)  # NaN and Infinity are no JSON
