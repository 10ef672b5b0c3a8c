"""OpenAI's older form of tools, ``functions`` and ``function_call``, as tools, and back again.

Clients that were written before there were tools still send it. An answer to such a request has at
most one call.
"""

from collections.abc import Mapping
from typing import Any

from monolane.errors import RequestError
from monolane.serve._openai.body import ChatRequest

Message = dict[str, Any]


def modern(request: ChatRequest) -> ChatRequest:
    """Return the request with tools in place of functions; RequestError where it has both."""
    messages = _messages(request.messages)
    if request.functions is None and request.function_call is None:
        return request if messages is request.messages else _with(request, messages=messages)
    if request.tools or request.tool_choice is not None:
        raise RequestError("functions: expected none beside tools; tools are their newer form")
    return _with(
        request,
        messages=messages,
        tools=[{"type": "function", "function": value} for value in request.functions or ()],
        tool_choice=_choice(request.function_call, bool(request.functions)),
        parallel_tool_calls=False,
    )


def old_message(message: Message) -> Message:
    """Return a message, or a delta of one, with its only call as ``function_call``."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return rest | {"function_call": calls[0]["function"]}


def old_reason(reason: str | None) -> str | None:
    """Return a finish_reason as it was before there were tools."""
    return "function_call" if reason == "tool_calls" else reason


def _with(request: ChatRequest, **changed: Any) -> ChatRequest:
    return request.model_copy(update=changed)


def _choice(value: Any, any_given: bool) -> Any:
    match value:
        case None | "none" | "auto":
            return value
        case {"name": str(name)} if any_given:
            return {"type": "function", "function": {"name": name}}
    raise RequestError(
        "function_call: expected 'none', 'auto' or {'name': ...} with the name of one of the "
        f"functions, got {value!r:.80}"
    )


def _messages(messages: list[Message]) -> list[Message]:
    """Return messages with calls and results as those of tools; the same list if none has any."""
    if not any(m.get("role") == "function" or m.get("function_call") for m in messages):
        return messages
    changed = []
    for i, message in enumerate(messages):
        call = message.get("function_call")
        if isinstance(call, Mapping):
            rest = {key: value for key, value in message.items() if key != "function_call"}
            name = call.get("name")
            message = rest | {
                "tool_calls": [{"id": _id(name), "type": "function", "function": call}]
            }
        elif call is not None:
            raise RequestError(f"messages[{i}].function_call: expected an object")
        elif message.get("role") == "function":
            message = message | {"role": "tool", "tool_call_id": _id(message.get("name"))}
        changed.append(message)
    return changed


def _id(name: Any) -> str:
    """Return an id for a call and its result, which only the function's name ties together."""
    return f"call_{name}"
