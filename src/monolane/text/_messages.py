"""Checks chat messages and copies them into plain data for a template.

A template sees whatever object it is given, methods included, and the sandbox knows only Python's
own types; so everything is rebuilt from dict, list, str, int, float, bool and None. Besides, a
fault in message 7 should be told as such, not as "'str object' has no attribute".
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from monolane.errors import TextError

_DEPTH = 64  # of nested lists and objects; tool schemas of real clients reach about 10
# A role goes into the template's own control text ('<|' + role + '|>'), so it is a bare word.
_ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")

_MAY_BE_SILENT = ("assistant", "tool")  # clients leave out a content that is empty
_TEXTS = ("text", "input_text", "output_text", "refusal")  # of chats, Responses and vLLM


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a checked copy; TextError says what is wrong with which message (counted from 0)."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise TextError(f"expected a list of messages, got {type(messages).__name__}")
    if not messages:
        raise TextError("expected at least one message, got an empty list")
    return [_message(message, f"message {place}") for place, message in enumerate(messages)]


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TextError(
            f"{where}: expected an object with role and content, got {type(message).__name__}"
        )
    role = message.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise TextError(f"{where}: expected role to be a word such as 'user', got {role!r:.80}")
    copy = {str(key): plain(value, where) for key, value in message.items()}
    if copy.get("content") is None:
        if copy.get("tool_calls"):
            return copy  # an assistant that only calls tools says nothing
        if "content" not in copy and role not in _MAY_BE_SILENT:
            raise TextError(f"{where}: expected content (text, or a list of text parts), got none")
        copy["content"] = ""
    copy["content"] = _content(copy["content"], where)
    return copy


def check_contents(messages: Sequence[Any]) -> None:
    """TextError for a content that is no text; what else may be wrong is found when it is copied.

    Before anything is counted: a picture is no text that is too long.
    """
    for place, message in enumerate(messages):
        if isinstance(message, Mapping) and message.get("content") is not None:
            _content(message["content"], f"message {place}")


def _content(content: Any, where: str) -> Any:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise TextError(
            f"{where}: expected content to be text or a list of text parts, "
            f"got {type(content).__name__}"
        )
    return [_part(part, f"{where}, part {place}") for place, part in enumerate(content)]


def _part(part: Any, where: str) -> dict[str, Any]:
    """Return a part as ``{"type": "text", "text": ...}``, however its API calls a text."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type", "text") if isinstance(part, dict) else type(part).__name__
    text = part.get("refusal" if kind == "refusal" else "text") if kind in _TEXTS else None
    if not isinstance(text, str):
        raise TextError(f"{where}: expected {{'type': 'text', 'text': ...}}, got {kind!r:.80}")
    return part if kind == "text" == part.get("type") else {"type": "text", "text": text}


def joined_texts(texts: Iterable[str]) -> str:
    """Return texts of one message as one, none of whose words become one word.

    A line break comes between two of them where no white space is, as in llama.cpp and vLLM.
    """
    found: list[str] = []
    for text in filter(None, texts):
        if found and not (found[-1][-1].isspace() or text[0].isspace()):
            found.append("\n")
        found.append(text)
    return "".join(found)


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """Return a copy made of JSON's types; TextError names ``where`` and the type that is none."""
    if depth > _DEPTH:
        raise TextError(f"{where}: expected at most {_DEPTH} levels of lists and objects")
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return _text(str.__str__(value), where) if kind is str else kind(value)
    if isinstance(value, Mapping):
        return {_key(key, where): plain(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, where, depth + 1) for item in value]
    raise TextError(f"{where}: expected JSON data, got a {type(value).__name__}")


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise TextError(f"{where}: expected keys to be text, got {type(key).__name__}")
    return _text(str.__str__(key), where)


def _text(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise TextError(f"{where}: expected Unicode text, got a lone surrogate") from None
    return text
