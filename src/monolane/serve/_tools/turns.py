"""Messages one behind the other, as a template takes them.

Clients send what their APIs allow: instructions of a developer, two messages of the user in a row,
a text behind the result of a call. Some templates refuse each of these, and say the same in fewer
messages.
"""

from collections.abc import Mapping
from typing import Any

from monolane.serve._tools.thoughts import NAME as THOUGHTS

Message = dict[str, Any]
_BETWEEN = "\n\n"
_SYSTEM = ("system", "developer")


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


def with_calls_apart(chat: list[Message]) -> list[Message]:
    """Return the messages with calls in messages of their own, behind the text beside them.

    What led to both stays with the calls: some templates show no thoughts before a text.
    """
    parted: list[Message] = []
    for message in chat:
        if message.get("tool_calls") and message.get("content"):
            apart = ("tool_calls", THOUGHTS)
            parted.append({key: x for key, x in message.items() if key not in apart})
            message = {**message, "content": None}
        parted.append(message)
    return parted


def with_one_system(chat: list[Message]) -> list[Message]:
    """Return the messages with all of the system as one, at the beginning."""
    systems = [message for message in chat if message.get("role") in _SYSTEM]
    others = [message for message in chat if message.get("role") not in _SYSTEM]
    named = [{**message, "role": systems[0]["role"]} for message in systems]
    return [*_joined(named, {role: (role,) for role in _SYSTEM}), *others]


def with_system_as_user(chat: list[Message]) -> list[Message]:
    """Return the messages with what the system says before what the user says first."""
    lead, *others = with_one_system(chat) or [{}]
    if lead.get("role") not in _SYSTEM:
        return chat
    place = next((i for i, m in enumerate(others) if m.get("role") == "user"), None)
    if place is None:
        return [{**lead, "role": "user"}, *others]
    content = _both(lead.get("content"), others[place].get("content"))
    if content is None:
        return chat
    return [*others[:place], {**others[place], "content": content}, *others[place + 1 :]]


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
            if THOUGHTS in message:
                found[-1][THOUGHTS] = _both(last.get(THOUGHTS, ""), message[THOUGHTS])
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
