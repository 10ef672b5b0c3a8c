"""How much one request may ask for, checked before it costs anything."""

from collections.abc import Iterable, Mapping
from typing import Any

from monolane.engine import Engine
from monolane.errors import RequestError

MAX_CHOICES = 256  # answers of one request
# Tokens drawn or scored, each alternative counted: what a whole reply may hold, about 100 MB.
MAX_WEIGHT = 1 << 20
# Longer texts are refused before seconds go into encoding them. The longest tokens in use are runs
# of 128 spaces, and no normalizer in use makes less than half of a text.
_CHARS_PER_TOKEN = 256


def check_size(choices: int, tokens: int, alternatives: int | None) -> None:
    """Refuse a request whose whole reply would fill the memory; RequestError."""
    if choices > MAX_CHOICES:
        raise RequestError(f"n: expected at most {MAX_CHOICES} answers in all, got {choices}")
    weight = choices * tokens * (1 + (alternatives or 0))
    if weight > MAX_WEIGHT:
        raise RequestError(
            f"max_tokens: expected at most {MAX_WEIGHT} tokens and alternatives over all answers, "
            f"got {weight}; ask for fewer answers, tokens or logprobs"
        )


def check_minimum(wanted: int | None, budget: int) -> None:
    """Refuse an answer that is to be longer than it may be; RequestError."""
    if wanted is not None and wanted > budget:
        raise RequestError(
            f"min_tokens: expected at most {budget}, the tokens that this answer may have, "
            f"got {wanted}"
        )


def check_prompt(prompt: str | list[int], engine: Engine) -> None:
    """Refuse a text that is far too long for the context; RequestError."""
    if isinstance(prompt, str):
        _check_length("prompt", len(prompt), engine)


def check_messages(messages: Iterable[Mapping[str, Any]], engine: Engine) -> None:
    """Refuse messages that are far too long for the context; RequestError."""
    _check_length("messages", sum(map(_length, messages)), engine)


def budget(wanted: int | None, prompt: int, engine: Engine) -> int:
    """Return how many tokens may be drawn: what is wanted, cut to what the context still holds."""
    context = engine.backend.context
    if wanted is not None and not 1 <= wanted <= context:
        raise RequestError(
            f"max_tokens: expected 1 to {context}, the context of this model, got {wanted}"
        )
    room = max(1, context - prompt + 1)  # a prompt that does not fit is refused by the engine
    return room if wanted is None else min(wanted, room)


def _check_length(name: str, chars: int, engine: Engine) -> None:
    context = engine.backend.context
    if chars > _CHARS_PER_TOKEN * context:
        raise RequestError(
            f"{name}: expected at most {context} tokens, the context of this engine, got {chars} "
            "characters, which cannot be so few; shorten it"
        )


def _length(message: Mapping[str, Any]) -> int:
    """Return the characters of a message's content."""
    content = message.get("content")
    if isinstance(content, str):
        return len(content)
    parts = content if isinstance(content, list) else ()
    return sum(len(str(part.get("text", ""))) for part in parts if isinstance(part, Mapping))
