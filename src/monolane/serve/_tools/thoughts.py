"""What an assistant thought, as clients send it back, and as templates take it.

Each API has its own name for it, and each template reads one or two of them: of any other name a
template says nothing. So thoughts get one name when they come in, and the template's on the way to
it, which ``template_probe`` finds.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from monolane.text import is_thought

Message = dict[str, Any]
# What DeepSeek, vLLM and OpenRouter, and Ollama call it; the first that is there is taken.
_NAMES = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
NAME = _NAMES[0]
# How templates take it: in a field, as a part of the content, or in a field with the text, which
# GPT-OSS's takes either of before a call.
WAYS = ("reasoning_content", "reasoning", "thinking", "part", "with text")


def with_one_name(message: Mapping[str, Any]) -> Message:
    """Return a message with its thoughts in one field, and nowhere else, if it is an assistant's.

    Those that nobody can read, encrypted or no text, are left out.
    """
    if message.get("role") != "assistant":
        return {**message}
    parts, content = [], message.get("content")
    if isinstance(content, list):
        parts = [part for part in content if is_thought(part)]
        content = [part for part in content if not is_thought(part)]
    found = (_text(value) for value in (*map(message.get, _NAMES), parts))
    thoughts = next(filter(None, found), "")
    named = {key: value for key, value in message.items() if key not in _NAMES}
    if parts:
        named["content"] = content or (None if message.get("tool_calls") else "")
    return {**named, NAME: thoughts} if thoughts else named


def with_thoughts(message: Message, thoughts: str, way: str) -> Message:
    """Return a message with these thoughts, in one of the ways in which templates take them."""
    if way not in ("part", "with text"):
        return {**message, way: thoughts}
    content = message.get("content") or []
    texts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if way == "part":
        return {**message, "content": [{"type": "thinking", "thinking": thoughts}, *texts]}
    said = "".join(part["text"] for part in texts)
    return {**message, "content": "", "thinking": f"{thoughts}\n\n{said}"}


def _text(value: Any, depth: int = 3) -> str:
    """Return the text of thoughts: one, or parts that have it under several names."""
    return value if isinstance(value, str) else "".join(_texts(value, depth))


def _texts(value: Any, depth: int) -> Iterator[str]:
    for part in value if isinstance(value, list) and depth else ():
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict):
            fields = map(part.get, ("thinking", "text", "reasoning", "content", "summary"))
            yield next(filter(None, (_text(field, depth - 1) for field in fields)), "")
