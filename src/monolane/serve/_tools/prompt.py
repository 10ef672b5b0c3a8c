"""Shows tools to a model, and the calls and results so far.

A chat template that knows tools does it. Where it does not, a text says the same, in the spelling
of Hermes models, which many others have seen in training.
"""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from monolane.engine import Engine
from monolane.errors import RequestError, TextError
from monolane.serve._tools.format import GENERIC
from monolane.serve._tools.request import ToolUse

Message = dict[str, Any]
_KNOWS_TOOLS = re.compile(r"\btools\b")
_PROBE = "how may I help you"

INSTRUCTIONS = """\
You may call functions to help with the user's request. Their signatures, one JSON object a line:
<tools>
{tools}
</tools>
To call one, answer with its name and arguments within these tags:
<tool_call>
{{"name": "function name", "arguments": {{"argument name": "value"}}}}
</tool_call>
What it gives comes within <tool_response> tags."""


def tool_prompt(
    messages: Sequence[Mapping[str, Any]],
    given: Sequence[Mapping[str, Any]] | None,
    use: ToolUse | None,
    engine: Engine,
) -> tuple[list[Message], Sequence[Mapping[str, Any]] | None]:
    """Return the messages and tools for the template; RequestError for calls that are none.

    ``given`` are the tools as the client spelled them, ``use`` what was read from them.
    """
    parsed = [_parsed(message, f"messages[{i}]") for i, message in enumerate(messages)]
    if _KNOWS_TOOLS.search(engine.chat_template.source):
        return parsed, given if use else None
    spelled = _spelled(parsed)
    return (spelled if use is None else _instructed(spelled, use, engine)), None


def _parsed(message: Mapping[str, Any], where: str) -> Message:
    """Return a message whose calls have their arguments as objects, which templates expect."""
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    if not isinstance(calls, list):
        raise RequestError(f"{where}.tool_calls: expected a list")
    return {**message, "tool_calls": [_call(call, where) for call in calls]}


def _call(call: Any, where: str) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where}.tool_calls: expected functions with a name and arguments")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        # What a model wrote may be no JSON. Then it is shown again as it is.
        with contextlib.suppress(ValueError, RecursionError):
            arguments = json.loads(arguments or "{}")
    return {**call, "function": {**function, "arguments": {} if arguments is None else arguments}}


def _spelled(messages: list[Message]) -> list[Message]:
    """Return the messages with calls and their results as text."""
    spelled: list[Message] = []
    for are_results, group in groupby(messages, lambda message: message.get("role") == "tool"):
        if are_results:
            texts = [f"<tool_response>\n{content_text(m)}\n</tool_response>" for m in group]
            spelled.append({"role": "user", "content": "\n".join(texts)})
            continue
        for message in group:
            if calls := message.get("tool_calls"):
                lines = [content_text(message), *map(_spelled_call, calls)]
                message = {**message, "content": "\n".join(line for line in lines if line)}
                del message["tool_calls"]
            spelled.append(message)
    return spelled


def _spelled_call(call: Message) -> str:
    function = call["function"]
    body = {"name": function["name"], "arguments": function["arguments"]}
    return f"{GENERIC.begin}\n{json.dumps(body, ensure_ascii=False)}\n{GENERIC.end}"


def _instructed(messages: list[Message], use: ToolUse, engine: Engine) -> list[Message]:
    """Return the messages with the instructions, where the template shows them."""
    tools = (
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        for tool in use.tools
    )
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = INSTRUCTIONS.format(tools=lines)
    role = "system" if _shows_system(engine) else "user"
    for place, message in enumerate(messages):
        if message.get("role") == role:
            content = message.get("content")
            joined: Any = f"{text}\n\n{content}"
            if isinstance(content, list):
                joined = [{"type": "text", "text": f"{text}\n\n"}, *content]
            return [*messages[:place], {**message, "content": joined}, *messages[place + 1 :]]
    return [{"role": role, "content": text}, *messages]


def _shows_system(engine: Engine) -> bool:
    chat = [{"role": "system", "content": _PROBE}, {"role": "user", "content": "x"}]
    try:
        return _PROBE in engine.chat_template.render(chat)
    except TextError:
        return False


def content_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message's content."""
    content = message.get("content")
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(part for part in parts if isinstance(part, str))
    return "" if content is None else str(content)
