"""The tools of a request in the spelling of chat completions, and what its calls are named back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from monolane.errors import RequestError

Json = dict[str, Any]
# Tools that OpenAI's own servers run. The model is not shown them, so it calls none.
_HOSTED = (
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
    "file_search",
    "code_interpreter",
    "image_generation",
    "mcp",
    "tool_search",
)


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """``chat``: as chat completions spell them. ``given``: the client's own words, of these."""

    chat: tuple[Json, ...]
    given: tuple[Json, ...]


def read_offered(tools: Sequence[Json] | None) -> OfferedTools:
    """Return the tools that the model may be shown; RequestError for one that nobody could run."""
    chat, given = [], []
    for i, tool in enumerate(tools or ()):
        kind = tool.get("type")
        if kind == "function":
            chat.append(_function(tool, tool.get("name")))
        elif kind == "custom":
            kept = ("name", "description", "format")
            chat.append({"type": kind, kind: {key: tool[key] for key in kept if key in tool}})
        elif kind == "namespace":
            chat += _members(tool, f"tools[{i}]")
        elif kind in _HOSTED:
            continue
        else:
            raise RequestError(
                f"tools[{i}].type: expected 'function' or 'custom', got {kind!r:.80}"
            )
        given.append({"parameters": None, "strict": False, **tool} if kind == "function" else tool)
    return OfferedTools(tuple(chat), tuple(given))


def chat_choice(choice: Any) -> Any:
    """Return ``tool_choice`` as chat completions spell it; what is wrong is found there."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "allowed_tools":
        tools = choice.get("tools")
        named = [chat_choice(tool) for tool in tools] if isinstance(tools, list) else tools
        allowed = {"mode": choice.get("mode"), "tools": named}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    if (kind := choice.get("type")) in ("function", "custom"):
        return {"type": kind, kind: {"name": choice.get("name")}}
    return choice


def joined_name(item: Json) -> Any:
    """Return the name of a called function, its namespace before it."""
    space, name = item.get("namespace"), item.get("name")
    return f"{space}.{name}" if space else name


def parted_name(name: str, tools: OfferedTools) -> Json:
    """Return ``name``, and ``namespace`` where the tool came in one."""
    for tool in tools.given:
        if tool.get("type") == "namespace" and name.startswith(f"{tool['name']}."):
            return {"name": name.removeprefix(f"{tool['name']}."), "namespace": tool["name"]}
    return {"name": name}


def _members(space: Json, where: str) -> list[Json]:
    tools, name = space.get("tools"), space.get("name")
    if not isinstance(tools, list) or not isinstance(name, str):
        raise RequestError(f"{where}: expected a namespace with a name and a list of tools")
    for tool in tools:
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise RequestError(f"{where}.tools: expected functions")
    return [_function(tool, f"{name}.{tool.get('name')}") for tool in tools]


def _function(tool: Json, name: Any) -> Json:
    kept = {key: tool[key] for key in ("description", "parameters", "strict") if key in tool}
    return {"type": "function", "function": {"name": name, **kept}}
