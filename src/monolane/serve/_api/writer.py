"""How an API spells one answer: the abstract writer that each of them implements."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from monolane.serve._api.request import Asked
from monolane.serve._run.channel import Update
from monolane.serve._run.choice import Choice
from monolane.serve._run.request import ServedRequest


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
