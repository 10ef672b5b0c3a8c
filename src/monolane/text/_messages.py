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
_THOUGHTS = ("thinking", "reasoning", "redacted_thinking")  # of Anthropic, Mistral and others
# What messages of Ollama, OpenAI and others hold besides their content, and no model here reads.
_MEDIA = ("images", "image", "audio", "audios", "video", "videos")


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
    copy = _said({str(key): plain(value, where) for key, value in message.items()}, where)
    if copy.get("content") is None:
        if copy.get("tool_calls"):
            return copy  # an assistant that only calls tools says nothing
        if "content" not in copy and role not in _MAY_BE_SILENT:
            raise TextError(f"{where}: expected content (text, or a list of text parts), got none")
        copy["content"] = ""
    return copy


def spoken_messages(messages: Sequence[Any]) -> list[Any]:
    """Return messages with all that they say in their content: refusals are texts of it.

    TextError for a content that is no text; what else may be wrong is found when it is copied.
    Before anything is counted: a picture is no text that is too long.
    """
    return [
        _said(message, f"message {place}") if isinstance(message, Mapping) else message
        for place, message in enumerate(messages)
    ]


def _said(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a message whose content has its refusal, too; TextError for what is no text.

    Templates read no field of these names, so what stands there would be dropped in silence.
    """
    for name in _MEDIA:
        if message.get(name):
            raise TextError(
                f"{where}: {name}: expected none, as this model reads text, got a "
                f"{type(message[name]).__name__}; leave it out, or say in content what it holds"
            )
    said = {key: value for key, value in message.items() if key != "refusal"}
    if said.get("content") is not None:
        said["content"] = _content(said["content"], where, said.get("role") == "assistant")
    refusal = message.get("refusal")
    if not isinstance(refusal, str | None):
        raise TextError(f"{where}: refusal: expected text or null, got a {type(refusal).__name__}")
    if refusal:
        content = said.get("content") or ""
        if isinstance(content, str):
            said["content"] = joined_texts((content, refusal))
        else:  # an answer's parts are pieces of one text
            between = "\n" if any(part.get("text") for part in content) else ""
            said["content"] = [*content, {"type": "text", "text": between + refusal}]
    return said


def is_thought(part: Any) -> bool:
    """Tell whether a part of an assistant's content is what it thought."""
    return isinstance(part, dict) and part.get("type") in _THOUGHTS


def _content(content: Any, where: str, may_think: bool) -> Any:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise TextError(
            f"{where}: expected content to be text or a list of text parts, "
            f"got {type(content).__name__}"
        )
    return [
        part if may_think and is_thought(part) else _part(part, f"{where}, part {place}")
        for place, part in enumerate(content)
    ]


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
