"""A process of its own that answers long bodies which need no model: tokens, counts, renderings.

JSON of megabytes is parsed, and texts of megabytes are encoded, by calls that keep Python's lock to
their end. In the server's own process everybody waits for each of them: for the lock, several times
a request. This process is begun when the first long body comes, which is answered here; others wait
until it is there. Where it cannot be begun, or has died, they are answered here.

It runs the same code on the same model's tokenizer and template, of which it needs no weights. What
it says goes over a socket that has no name, as JSON: whatever a client's body does to that process,
it can only send a wrong answer.
"""

import json
import logging
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from monolane.errors import EngineClosedError
from monolane.serve._errors import ApiError, ContextError
from monolane.serve._run.preparers import Preparers

log = logging.getLogger("monolane.serve")

LONG_BODY = 64 << 10  # bytes of a body that goes there; shorter ones take a few milliseconds here
_START_SECONDS = 60.0  # to import and to read a tokenizer
_SIZES = struct.Struct("<II")  # bytes of the head and of the body of a message


@dataclass(frozen=True, slots=True)
class Setup:
    """What such a process needs to know: the model, and the server's options that tell in answers.

    Fields from ``model_name`` on are named as in ServerOptions.
    """

    model: str  # its folder or file
    context: int
    adapters: tuple[str, ...]  # their names
    model_name: str
    any_model: bool
    tool_format: str
    max_body_bytes: int


class Here:
    """Answers bodies in this process."""

    def __init__(self, preparers: Preparers) -> None:
        self.preparers = preparers

    def answer(self, path: str, data: bytes, here: Callable[[bytes], bytes]) -> bytes:
        """Return the JSON that ``here`` makes of a body posted to ``path``."""
        del path
        return here(data)


class ReadingProcess:
    """Answers bodies in another process, one at a time."""

    def __init__(self, setup: Setup, waiting: int) -> None:
        """``waiting``: requests that may wait for it."""
        self._setup = setup
        self.preparers = Preparers(waiting)
        self._lock = threading.Lock()  # of the link: of one request and its answer
        self._link: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = self._failed = self._closed = False
        self._settled = threading.Event()  # unset while it begins
        self._settled.set()

    @property
    def is_ready(self) -> bool:
        """Whether it is there."""
        return self._link is not None

    def takes_next(self) -> bool:
        """Tell whether the next body goes there; where it has not been begun, it is.

        The body that has it begun does not: it would wait the longest.
        """
        if self._begun:
            return not self._failed
        if not self._closed:
            self._begun = True
            self._settled.clear()
            threading.Thread(target=self._begin, name="reading process", daemon=True).start()
        return False

    def answer(self, path: str, data: bytes, here: Callable[[bytes], bytes]) -> bytes:
        """Return the JSON that a body posted to ``path`` gets, made by ``here`` if need be.

        Raises what ``here`` would raise, as an ApiError. For a thread that can wait, also until the
        process is there.
        """
        self._settled.wait()
        with self._lock:
            if self._closed:
                raise EngineClosedError("the server is shutting down")
            link = self._link
            if link is None:
                return here(data)
            try:
                send(link, {"path": path}, data)
                head, reply = receive(link)
            except (OSError, EOFError):
                if self._closed:
                    raise EngineClosedError("the server is shutting down") from None
                log.warning("the process that reads long bodies has ended; it is begun anew")
                self._end()
                self._begun = False
                return here(data)
        if head:
            raise error_of(head)
        return reply

    def close(self) -> None:
        """End the process; who waits for it gets an EngineClosedError."""
        self._closed = True
        self._settled.set()
        self.preparers.close()
        self._end()

    def _begin(self) -> None:
        try:
            self._start()
        finally:
            self._settled.set()  # whatever came of it, nobody waits for ever

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "monolane.serve._reader", str(theirs.fileno())]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
                )
            ours.settimeout(_START_SECONDS)
            send(ours, asdict(self._setup), b"")
            receive(ours)
            ours.settimeout(None)
        except (OSError, EOFError) as error:
            ours.close()
            self._end()
            # Not tried again: what is missing, memory or the right to begin one, stays so.
            self._failed = True
            log.warning("long bodies are read by this process, as no other can be begun: %s", error)
            return
        self._link = ours
        if self._closed:
            self._end()

    def _end(self) -> None:
        link, self._link = self._link, None
        process, self._process = self._process, None
        if link is not None:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)  # whoever waits for an answer wakes
            link.close()
        if process is not None:
            process.kill()
            process.wait()


def send(link: socket.socket, head: dict[str, Any], body: bytes) -> None:
    """Send a message."""
    told = json.dumps(head).encode()
    link.sendall(_SIZES.pack(len(told), len(body)) + told)
    link.sendall(body)


def receive(link: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Return the next message; EOFError where nobody sends any more."""
    head, body = _SIZES.unpack(_exactly(link, _SIZES.size))
    found: dict[str, Any] = json.loads(_exactly(link, head))
    return found, _exactly(link, body)


def _exactly(link: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        got = link.recv_into(view[at:])
        if not got:
            raise EOFError("the other end is closed")
        at += got
    return bytes(data)


def told(error: ApiError) -> dict[str, Any]:
    """Return an error as the head of a message."""
    if isinstance(error, ContextError):
        return {"context": [error.param, error.context, error.got, error.tokens]}
    return {"error": [error.status, str(error), error.param, dict(error.headers), error.code]}


def error_of(head: dict[str, Any]) -> ApiError:
    """Return the error that a head tells of."""
    return ContextError(*head["context"]) if "context" in head else ApiError(*head["error"])
