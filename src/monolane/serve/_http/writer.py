"""How an API spells one answer: the abstract writer of each, and what all spell alike."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from monolane.serve._http.request import Asked
from monolane.serve._run.channel import Update
from monolane.serve._run.choice import Choice
from monolane.serve._run.request import ServedRequest

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class Writer(ABC):
    """Spells one answer, as a whole or as server-sent events."""

    live = False  # the client wants to be told of the queue
    watches = False  # it wants to be told how much of the prompt is read
    keep_alive = b": keep-alive\n\n"  # what keeps a quiet connection open

    @abstractmethod
    def whole(self) -> bytes:
        """Return the reply to a request that is over and did not fail, as JSON."""

    def begin(self) -> bytes:
        """Return what comes before any text."""
        return b""

    @abstractmethod
    def text(self, updates: Iterable[Update]) -> bytes:
        """Return the events of what has come; empty where there is nothing to tell."""

    def queued(self, index: int, ahead: int) -> bytes:
        """Return what tells a live client how many are before its choice."""
        return b""

    def progress(self, choice: Choice) -> bytes:
        """Return what tells a client how much of a choice's prompt is read, where that is new."""
        return b""

    @abstractmethod
    def end(self) -> bytes:
        """Return what comes after the last text: an error, or the end mark."""

    @abstractmethod
    def failed(self, error: BaseException) -> bytes:
        """Return the events that end a stream which went wrong."""


# From a body, and whose key came with it (b"": nobody's), to what it asks for and the writer of its
# answer. On a thread; raises what becomes the error reply.
Read = Callable[[bytes, bytes], tuple[Asked, Callable[[ServedRequest], Writer]]]


@dataclass(frozen=True, slots=True)
class Counted:
    """Tokens of a request so far; ``thought`` and ``cached`` are part of drawn and prompt."""

    prompt: int
    drawn: int
    thought: int
    cached: int


def count_tokens(served: ServedRequest, answers: int) -> Counted:
    """Return the tokens counted so far; a prompt once, however many ``answers`` it has."""
    choices = served.choices
    return Counted(
        prompt=sum(len(choice.prompt_ids) for choice in choices) // answers,
        drawn=sum(choice.drawn for choice in choices if not choice.discard),
        thought=sum(choice.stream.thinking_tokens for choice in choices),
        cached=sum(choice.cached for choice in choices[::answers]),
    )


def json_bytes(value: Any) -> bytes:
    """Return compact JSON."""
    return _ENCODER.encode(value).encode()


def long_json(value: Any) -> bytes:
    """Return compact JSON of what may be megabytes; to be called on a thread.

    Python's encoder in C lets no other thread run before it is through; this one does.
    """
    return "".join(_ENCODER.iterencode(value)).encode()
