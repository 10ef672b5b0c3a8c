"""Which requests belong together: those that begin alike, so that one replica has their prefix."""

import hashlib
import json
import secrets
from typing import Any

PREFIX = 256  # characters of a plain prompt; of a conversation, everything up to its first question


def prefix_key(body: bytes) -> str:
    """Return the key of a request's beginning; one of chance where it has none.

    A conversation keeps its key from turn to turn: it is made of what stands before the first
    answer, however long. A plain prompt is cut, so that one that grows behind ``PREFIX`` characters
    keeps its key too. Requests without a prompt, or with a broken body, may go anywhere.
    """
    try:
        asked = json.loads(body)
    except ValueError:
        asked = None
    beginning = _beginning(asked) if isinstance(asked, dict) else None
    if beginning is None:
        return secrets.token_hex(16)
    return hashlib.blake2b(json.dumps(beginning).encode(), digest_size=16).hexdigest()


def _beginning(asked: dict[str, Any]) -> Any:
    if messages := asked.get("messages"):
        return _first_turn(messages) if isinstance(messages, list) else None
    prompt = asked.get("prompt")
    # A text, a list of token ids, or several prompts, of which the first decides.
    while isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]
    return prompt[:PREFIX] if isinstance(prompt, str | list) and prompt else None


def _first_turn(messages: list[Any]) -> list[Any]:
    """Return the messages up to the first of a user, that one included."""
    for place, message in enumerate(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            return messages[: place + 1]
    return messages
