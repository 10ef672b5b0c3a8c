"""Texts cut into contexts, so that each token is scored once with what comes before it."""

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pydoc_data.topics import topics

from monolane.errors import RequestError


@dataclass(frozen=True)
class Text:
    """What is scored, and how the results name it."""

    name: str
    text: str


@dataclass(frozen=True)
class Window:
    """Tokens in one context, of which those from ``first`` on are scored."""

    ids: Sequence[int]
    first: int


def check_window(tokens: int) -> None:
    """Raise RequestError for a context in which no token follows another."""
    if tokens < 2:
        raise RequestError(f"--window: expected 2 tokens of context or more, got {tokens}")


def help_topics() -> list[Text]:
    """Return the help on Python's language: a text for each topic, in the order of their names."""
    version = platform.python_version()
    return [Text(f"help({name!r}) of Python {version}", topics[name]) for name in sorted(topics)]


def cut_text(ids: Sequence[int], context: int) -> Iterator[Window]:
    """Yield the windows of one text, half a context further each; its first token is given."""
    stride, scored = context // 2, 1
    for start in range(0, max(1, len(ids) - stride), stride):
        part = ids[start : start + context]
        yield Window(part, scored - start)
        scored = start + len(part)
