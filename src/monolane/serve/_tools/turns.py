"""Messages one behind the other, as a template takes them.

Clients send what their APIs allow: instructions of a developer, two messages of the user in a row,
a text behind the result of a call. Some templates refuse each of these, and say the same in fewer
messages.
"""

from collections.abc import Mapping
from typing import Any

Message = dict[str, Any]
_BETWEEN = "\n\n"


def with_system(chat: list[Message]) -> list[Message]:
    """Return the messages with a developer's as the system's, those that begin the chat as one."""
    if not any(message.get("role") == "developer" for message in chat):
        return chat
    turned = [m | {"role": "system"} if m.get("role") == "developer" else m for m in chat]
    lead = next((i for i, m in enumerate(turned) if m.get("role") != "system"), len(turned))
    return [*_joined(turned[:lead], {"system": ("system",)}), *turned[lead:]]


def alternating(chat: list[Message]) -> list[Message]:
    """Return the messages with neighbours of one role as one."""
    return _joined(chat, {"user": ("user",), "assistant": ("assistant",)})


def with_texts_in_results(chat: list[Message]) -> list[Message]:
    """Return the messages with what the user says behind a result as the end of that result."""
    return _joined(chat, {"user": ("tool",)})


def _joined(chat: list[Message], onto: Mapping[str, tuple[str, ...]]) -> list[Message]:
    """``onto``: to messages of which roles one of this role is joined, where it follows."""
    found: list[Message] = []
    for message in chat:
        last = found[-1] if found else {}
        wanted = last.get("role") in onto.get(str(message.get("role")), ())
        content = _both(last.get("content"), message.get("content")) if wanted else None
        if content is None or last.get("tool_calls") or message.get("tool_calls"):
            found.append(message)
        else:
            found[-1] = {**last, "content": content}
    return found


def _both(first: Any, second: Any) -> Any:
    """Return two contents as one; None where one of them is none."""
    if isinstance(first, str) and isinstance(second, str):
        return _BETWEEN.join((first, second)) if first and second else first or second
    if not isinstance(first, str | list) or not isinstance(second, str | list):
        return None
    return [*_parts(first), *_parts(_BETWEEN), *_parts(second)]


def _parts(content: str | list[Any]) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
