"""The tools of a request, read once: which the answer may or must call, and in which spelling."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monolane.engine import Engine
from monolane.errors import RequestError
from monolane.serve._grammar.structured import check_schema
from monolane.serve._tools.custom import as_function_choice, as_functions
from monolane.serve._tools.format import ToolFormat
from monolane.serve._tools.formats import AUTO, format_of, mark_ids

MAX_TOOLS_SOURCE = 1 << 19  # characters of all tools
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client offers."""

    name: str
    description: str
    parameters: Any  # a checked JSON schema
    strict: bool = False  # arguments must meet it, also where no call is required


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request says of tools; only where the answer may call one."""

    tools: tuple[Tool, ...]  # all of them: the model is shown them all
    callable: tuple[Tool, ...]  # those that tool_choice leaves
    required: bool  # the answer must call one, and nothing else
    parallel: bool  # it may call several
    format: ToolFormat
    marks: Mapping[str, int]  # spellings of the format that are control tokens, and their ids
    custom: frozenset[str] = frozenset()  # names of the tools whose calls have a text for input

    @property
    def guided(self) -> bool:
        """Whether a grammar decides what a call may be.

        Nothing but a grammar keeps a model from a tool that it was shown and may not call.
        """
        held = len(self.callable) < len(self.tools) or any(tool.strict for tool in self.callable)
        return self.required or held


def read_tools(
    tools: Sequence[Any] | None,
    choice: Any,
    parallel: bool | None,
    engine: Engine,
    format_name: str = AUTO,
) -> ToolUse | None:
    """Return how the answer may call tools, None if not; RequestError for what makes no sense.

    ``choice`` is the request's ``tool_choice``, ``parallel`` its ``parallel_tool_calls``.
    ``format_name`` is the server's ``--tool-format``.
    """
    tools, custom = as_functions(tools)
    choice = as_function_choice(choice)
    found = tuple(_tool(value, f"tools[{i}]") for i, value in enumerate(tools or ()))
    if len(names := {tool.name for tool in found}) < len(found):
        raise RequestError(f"tools: expected names that differ, got {len(names)} of {len(found)}")
    if (size := len(json.dumps(tools))) > MAX_TOOLS_SOURCE:
        raise RequestError(f"tools: expected at most {MAX_TOOLS_SOURCE} characters, got {size}")
    mode, allowed = _choice(choice, names)
    if not found or mode == "none":
        return None
    tool_format = format_of(engine, format_name)
    return ToolUse(
        found,
        tuple(tool for tool in found if tool.name in allowed),
        required=mode == "required",
        parallel=parallel is not False and not _is_named(choice),
        format=tool_format,
        marks=mark_ids(tool_format, engine),
        custom=custom,
    )


def _choice(value: Any, names: set[str]) -> tuple[str, set[str]]:
    """Return none, auto or required, and the names that may be called."""
    match value:
        case None:
            return "auto", names
        case "required" if not names:
            raise RequestError("tool_choice: 'required' needs tools, got none")
        case "none" | "auto" | "required":
            return str(value), names
        case {"function": {"name": str(name)}}:
            return "required", _known([name], names)
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}} if (
            mode in ("auto", "required") and tools
        ):
            return mode, _known([_allowed(tool) for tool in tools], names)
    raise RequestError(
        "tool_choice: expected 'none', 'auto', 'required' or an object: "
        "{'type': 'function', 'function': {'name': ...}}, or {'type': 'allowed_tools', "
        "'allowed_tools': {'mode': 'auto' or 'required', 'tools': [...]}}, "
        f"got {value!r:.80}"
    )


def _is_named(choice: Any) -> bool:
    return isinstance(choice, Mapping) and "function" in choice


def _allowed(tool: Any) -> Any:
    match tool:
        case {"type": "function", "function": {"name": name}}:
            return name
    return tool


def _known(wanted: Sequence[Any], names: set[str]) -> set[str]:
    for name in wanted:
        if not isinstance(name, str) or name not in names:
            raise RequestError(
                f"tool_choice: expected the name of one of the tools, got {name!r:.80}"
            )
    return set(wanted)


def _tool(value: Any, where: str) -> Tool:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or value.get("type", "function") != "function":
        raise RequestError(f"{where}: expected {{'type': 'function', 'function': {{...}}}}")
    name, description = function.get("name"), function.get("description") or ""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(f"{where}.function.name: expected a plain name, got {name!r:.80}")
    if not isinstance(description, str):
        raise RequestError(f"{where}.function.description: expected text")
    parameters = function.get("parameters") or {"type": "object", "additionalProperties": False}
    check_schema(parameters, f"{where}.function.parameters")
    strict = function.get("strict")
    if not isinstance(strict, bool | None):
        raise RequestError(f"{where}.function.strict: expected true or false, got {strict!r:.80}")
    return Tool(name, description, parameters, bool(strict))
