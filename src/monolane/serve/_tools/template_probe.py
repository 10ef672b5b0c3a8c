"""What a chat template shows of tool calls, their results and thoughts, found by trying.

Templates differ in what they take: arguments as objects or as text, one call in a message or
several, no content beside calls or an empty one. Some drop calls without a word. Reading a template
would not tell, for it is a program; a rendering with calls in it does, and takes a millisecond.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

from monolane.errors import TextError
from monolane.serve._tools.thoughts import WAYS, with_thoughts
from monolane.text import ChatTemplate, thinking_switch

_NAME, _VALUES, _RESULTS = "probe_tool", ("probe-one", "probe-two"), ("seen-one", "seen-two")
_THEN, _SAID = "and-then", "so-said"
_THOUGHT = "so-thought"
_SPELLED = re.compile(rf"""["']{_THOUGHT}""")
PROBE_TOOL = {
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
    texts: bool = True  # arguments may be a text, too
    then: bool = True  # a user's message may follow a result


@lru_cache(maxsize=64)
def shown_by(template: ChatTemplate) -> Shown:
    """Return what a template shows: in the form of the API if it takes that, else in another."""
    for many, null, objects in product((True, False), repeat=3):
        calls = 2 if many else 1
        words = (_NAME, *_VALUES[:calls], *_RESULTS[:calls])
        chat = _called(calls, null, objects)
        if _shows(template, chat, words):
            texts = not objects or _shows(template, _called(calls, null, False), words)
            then = _shows(template, [*chat, _user(_THEN)], (*words, _THEN))
            return Shown(True, True, many, null, objects, texts, then)
    chat = [_user(), {"role": "assistant", "content": "x"}, _result(0)]
    if not _shows(template, chat, _RESULTS[:1]):
        return Shown()
    return Shown(results=True, then=_shows(template, [*chat, _user(_THEN)], (_RESULTS[0], _THEN)))


@lru_cache(maxsize=64)
def takes_bare_tools(template: ChatTemplate) -> bool:
    """Tell whether a template shows a tool that has a name alone, which the API allows."""
    bare = {"type": "function", "function": {"name": _NAME}}
    return _shows(template, [_user()], (_NAME,), bare)


@lru_cache(maxsize=256)
def thoughts_shown_by(template: ChatTemplate, text: bool, calls: bool) -> str | None:
    """Return the way in which a template shows the thoughts of an assistant's message, or None.

    ``text`` and ``calls`` are what the message has besides. It is the last but for the results of
    its calls: many templates show thoughts there alone.
    """
    shown = shown_by(template)
    if calls:
        _, told, *rest = _called(1, shown.null, shown.objects)
        told = {**told, "content": _SAID} if text else told
    else:
        told, rest = {"role": "assistant", "content": _SAID if text else ""}, []
    words = [_THOUGHT, *([_SAID] if text else []), *([_NAME, _RESULTS[0]] if calls else [])]
    switch = thinking_switch(template)
    variables: dict[str, Any] = {} if switch is None else {switch: True}
    for way, begins in product(WAYS, (True, False)):
        chat = [_user(), with_thoughts(told, _THOUGHT, way), *rest]
        found = _rendered(template, chat, add_generation_prompt=begins, **variables)
        # Some spell a part that they do not know as Python or JSON does.
        if all(word in found for word in words) and not _SPELLED.search(found):
            return way
    return None


def _called(count: int, null: bool, objects: bool) -> list[dict[str, Any]]:
    """Return a chat with so many calls and their results."""
    calls = []
    for i, value in enumerate(_VALUES[:count]):
        arguments: Any = {"at": value} if objects else f'{{"at": "{value}"}}'
        function = {"name": _NAME, "arguments": arguments}
        calls.append({"id": _id(i), "type": "function", "function": function})
    told = {"role": "assistant", "content": None if null else "", "tool_calls": calls}
    return [_user(), told, *map(_result, range(count))]


def _shows(
    template: ChatTemplate,
    chat: list[dict[str, Any]],
    words: Iterable[str],
    tool: dict[str, Any] = PROBE_TOOL,
) -> bool:
    """Tell whether the text of a chat has all these words."""
    text = _rendered(template, chat, tool)
    return all(word in text for word in words)


def _rendered(
    template: ChatTemplate,
    chat: list[dict[str, Any]],
    tool: dict[str, Any] = PROBE_TOOL,
    **variables: Any,
) -> str:
    """Return the text of a chat; none where the template refuses it."""
    try:
        return template.render(chat, tools=[tool], **variables)
    except TextError:
        return ""


def _user(text: str = "x") -> dict[str, Any]:
    return {"role": "user", "content": text}


def _result(i: int) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": _id(i), "name": _NAME, "content": _RESULTS[i]}


def _id(i: int) -> str:
    return f"probe000{i}"  # nine letters and digits, which any template takes
