"""OpenAI's custom tools, whose input is a text: functions of one argument, and back again.

A model knows tools as functions, so it is shown one with a text named ``input``. What it writes
there becomes the call's input. A format by regex becomes the pattern of that text, which a grammar
then holds it to. A format by a Lark grammar is refused: within a JSON text it would have to be
written with JSON's escapes, which the grammar compiler cannot do.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from monolane.errors import RequestError
from monolane.serve._tools.calls import Delta, ToolCallDelta, read_arguments

Json = dict[str, Any]
INPUT = "input"  # the argument


def as_functions(tools: Sequence[Any] | None) -> tuple[list[Any] | None, frozenset[str]]:
    """Return the tools with functions in place of custom ones, and the names of those.

    RequestError for a custom tool that cannot be followed; what is wrong otherwise is found later.
    """
    if tools is None:
        return None, frozenset()
    found = [
        _function(tool, f"tools[{i}].custom") if is_custom(tool) else tool
        for i, tool in enumerate(tools)
    ]
    names = (
        new["function"].get("name") for new, old in zip(found, tools, strict=True) if new != old
    )
    return found, frozenset(name for name in names if isinstance(name, str))


def as_function_choice(choice: Any) -> Any:
    """Return a ``tool_choice`` with functions in place of custom tools."""
    match choice:
        case "any" | {"type": "any"}:  # Mistral's and Anthropic's word
            return "required"
        case {"type": "auto" | "none" | "required" as mode}:
            return mode
        case {"type": "custom", "custom": {"name": name}} | {"type": "function", "name": name}:
            return {"type": "function", "function": {"name": name}}
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}:
            named = [as_function_choice(tool) for tool in tools]
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}
    return choice


def with_functions(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages whose custom calls are calls of functions."""
    changed: list[Mapping[str, Any]] = []
    for message in messages:
        calls = message.get("tool_calls")
        if isinstance(calls, list) and any(map(is_custom, calls)):
            message = {**message, "tool_calls": [*map(_function_call, calls)]}
        changed.append(message)
    return changed


def is_custom(value: Any) -> bool:
    """Tell whether a tool, or a call, is a custom one."""
    return isinstance(value, dict) and value.get("type") == "custom"


class CustomInputs:
    """Turns the arguments of custom tools' calls into inputs, each of them when it is whole."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._open: dict[int, str] = {}  # arguments so far, by the call's index

    def turned(self, delta: Delta) -> Delta:
        """Return what is certain by now."""
        if not self._names:
            return delta
        parts: list[ToolCallDelta] = []
        for part in delta.tool_calls:
            if part.name is not None:  # another call: what was held is of one that is over
                parts += self.rest()
            if (turned := self._part(part)) is not None:
                parts.append(turned)
        return replace(delta, tool_calls=tuple(parts))

    def rest(self) -> tuple[ToolCallDelta, ...]:
        """Return what was held back of calls that are not whole: it stays as it is written."""
        held, self._open = self._open, {}
        return tuple(ToolCallDelta(i, text, custom=True) for i, text in held.items() if text)

    def _part(self, part: ToolCallDelta) -> ToolCallDelta | None:
        if part.name in self._names:
            self._open[part.index] = ""
        if part.index not in self._open:
            # Of a custom call, white space may follow what is whole.
            return part
        written = self._open[part.index] + part.arguments
        text = _input(written)
        if text is None:
            self._open[part.index] = written
            return replace(part, arguments="", custom=True) if part.name is not None else None
        self._open[part.index] = ""
        return replace(part, arguments=text, custom=True)


def _input(arguments: str) -> str | None:
    with contextlib.suppress(ValueError, RecursionError):
        found = read_arguments(arguments)
        if isinstance(found, dict) and isinstance(found.get(INPUT), str):
            return str(found[INPUT])
    return None


def _function(tool: Json, where: str) -> Json:
    custom = tool.get("custom")
    if not isinstance(custom, dict):
        raise RequestError(f"{where}: expected an object with a name")
    text = {"type": "string", **_pattern(custom.get("format"), f"{where}.format")}
    parameters = {
        "type": "object",
        "properties": {INPUT: text},
        "required": [INPUT],
        "additionalProperties": False,
    }
    kept = {key: custom[key] for key in ("name", "description") if custom.get(key) is not None}
    strict = {"strict": True} if "pattern" in text else {}
    return {"type": "function", "function": {**kept, "parameters": parameters, **strict}}


def _pattern(form: Any, where: str) -> Json:
    match form:
        case None | {"type": "text"}:
            return {}
        case {"type": "grammar", "grammar": {"syntax": syntax, "definition": str(definition)}}:
            pass
        case {"type": "grammar", "syntax": syntax, "definition": str(definition)}:
            pass
        case _:
            raise RequestError(
                f"{where}: expected {{'type': 'text'}}, or a grammar with syntax and definition, "
                f"got {form!r:.80}"
            )
    if syntax == "lark":
        raise RequestError(
            f"{where}: a Lark grammar cannot be followed within a call; expected the syntax "
            "'regex', or ask for the grammar in structured_outputs, without tools"
        )
    if syntax != "regex":
        raise RequestError(f"{where}: expected the syntax 'regex', got {syntax!r:.80}")
    return {"pattern": f"^(?:{definition})$"}


def _function_call(call: Json) -> Json:
    if not is_custom(call):
        return call
    custom = call.get("custom")
    if not isinstance(custom, dict) or not isinstance(custom.get(INPUT), str):
        raise RequestError("messages: expected custom calls with a name and an input")
    arguments = json.dumps({INPUT: custom[INPUT]}, ensure_ascii=False)
    function = {"name": custom.get("name"), "arguments": arguments}
    return {"id": call.get("id"), "type": "function", "function": function}
