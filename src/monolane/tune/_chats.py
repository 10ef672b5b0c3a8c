"""Chats as JSON lines: one object a line, with ``messages`` and, if any, ``tools``.

Everything is looked at before training begins: a row that cannot be used is an error with its line
number, not a row that goes missing.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monolane.errors import TextError


@dataclass(frozen=True, slots=True)
class Chat:
    """One line of a file: its number, counted from 1, and what it says."""

    line: int
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] | None = None


def read_chats(path: Path) -> Iterator[Chat]:
    """Yield the chats of a JSONL file; TextError names the line that holds none."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _chat(line, number, f"{path}, line {number}")
    except UnicodeDecodeError:
        raise TextError(f"{path}: expected JSON lines in UTF-8, got other bytes") from None
    except OSError as error:
        raise TextError(f"{path}: expected a file of JSON lines, got: {error.strerror}") from None


def data_digest(path: Path) -> str:
    """Return the SHA-256 of a file: a run resumes only on the data that it began with."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _chat(line: str, number: int, where: str) -> Chat:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TextError(f"{where}: expected JSON, got: {error}") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("messages"), list):
        got = sorted(raw) if isinstance(raw, dict) else type(raw).__name__
        raise TextError(
            f"{where}: expected an object with a list 'messages' of {{role, content}}, "
            f"got {got!s:.80}"
        )
    tools = raw.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise TextError(f"{where}: tools: expected a list, got {type(tools).__name__}")
    return Chat(number, tuple(raw["messages"]), None if tools is None else tuple(tools))
