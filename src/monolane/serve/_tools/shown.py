"""What a chat template shows of tool calls and their results, found by trying.

Templates differ in what they take: arguments as objects or as text, one call in a message or
several, no content beside calls or an empty one. Some drop calls without a word. Reading a template
would not tell, for it is a program; a rendering with calls in it does, and takes a millisecond.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

from monolane.errors import TextError
from monolane.text import ChatTemplate

_NAME, _VALUES, _RESULTS = "probe_tool", ("probe-one", "probe-two"), ("seen-one", "seen-two")
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Looks",
        "parameters": {
            "type": "object",
            "properties": {"at": {"type": "string", "description": "What"}},
            "required": ["at"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class Shown:
    """What a template shows, and the form in which it takes calls."""

    calls: bool = False
    results: bool = False  # messages of the role "tool"
    many: bool = True  # several calls in one message
    null: bool = True  # a message of calls alone may have null for its content
    objects: bool = True  # arguments are objects; False: JSON as text


@lru_cache(maxsize=64)
def shown_by(template: ChatTemplate) -> Shown:
    """Return what a template shows: in the form of the API if it takes that, else in another."""
    for many, null, objects in product((True, False), repeat=3):
        calls = 2 if many else 1
        text = _render(template, calls, null, objects)
        if all(word in text for word in (_NAME, *_VALUES[:calls], *_RESULTS[:calls])):
            return Shown(True, True, many, null, objects)
    chat = [_user(), {"role": "assistant", "content": "x"}, _result(0)]
    return Shown(results=_RESULTS[0] in _rendered(template, chat))


def _render(template: ChatTemplate, count: int, null: bool, objects: bool) -> str:
    calls = []
    for i, value in enumerate(_VALUES[:count]):
        arguments: Any = {"at": value} if objects else f'{{"at": "{value}"}}'
        function = {"name": _NAME, "arguments": arguments}
        calls.append({"id": _id(i), "type": "function", "function": function})
    told = {"role": "assistant", "content": None if null else "", "tool_calls": calls}
    return _rendered(template, [_user(), told, *map(_result, range(count))])


def _rendered(template: ChatTemplate, chat: list[dict[str, Any]]) -> str:
    try:
        return template.render(chat, tools=[_TOOL])
    except TextError:
        return ""


def _user() -> dict[str, Any]:
    return {"role": "user", "content": "x"}


def _result(i: int) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": _id(i), "name": _NAME, "content": _RESULTS[i]}


def _id(i: int) -> str:
    return f"probe000{i}"  # nine letters and digits, which any template takes
