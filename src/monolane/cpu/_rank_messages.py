"""What ranks say until they decode: JSON, a line each, and signs of life meanwhile."""

import json
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from monolane.errors import RankError

# Seconds of silence that a rank is granted before its first word, which comes as soon as its
# interpreter has started. From then on it says that it is alive, every so often. How long it loads
# is nobody's business.
_STARTING = 10.0
_BEAT = 0.5

# A wait for a word counts slices, not the clock: while all ranks are stopped together, as by
# Ctrl-Z, none is late. Nor does it count those in which the rank had something to do.
_SLICE = 0.1

_LONGEST = 1 << 20  # bytes of a line

STALLED = "made no progress"


def say(channel: socket.socket, word: dict[str, Any]) -> None:
    """Send one word."""
    channel.sendall(json.dumps(word).encode() + b"\n")


def hear(channel: socket.socket) -> dict[str, Any]:
    """Return the next word, and take in no byte beyond it; ValueError if it is none, OSError."""
    line = bytearray()
    while not line.endswith(b"\n"):
        # Looks first: what follows the line is not ours.
        found = channel.recv(4096, socket.MSG_PEEK)
        if not found:
            raise ConnectionError("the connection ended")
        line += channel.recv(found.find(b"\n") + 1 or len(found))
        if len(line) > _LONGEST:
            raise ValueError("a line too long")
    try:
        word = json.loads(line)
    except RecursionError:  # brackets within brackets
        raise ValueError("no word") from None
    if not isinstance(word, dict):
        raise ValueError("no word")
    return word


@contextmanager
def beating(channel: socket.socket) -> Iterator[None]:
    """Say every now and then that this process is alive: it may be long at loading."""
    over = threading.Event()

    def beat() -> None:
        with suppress(OSError):  # rank 0 is gone, which the main thread will see
            say(channel, {"loading": True})
            while not over.wait(_BEAT):
                say(channel, {"loading": True})

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def await_answer(
    channel: socket.socket,
    rank: int,
    patience: float,
    fate: Callable[[int], str],
    is_idle: Callable[[], bool] = lambda: True,
) -> dict[str, Any]:
    """Return what a rank says when it is done loading; RankError if it dies or is silent.

    It is silent if it says no word for ``patience`` seconds in which it ``is_idle``. Whether a
    process of another host is cannot be seen: there each second without a word counts.
    """
    limit, silent = max(patience, _STARTING), 0.0
    while silent < limit:
        if not select.select([channel], [], [], _SLICE)[0]:
            silent += _SLICE * is_idle()
            continue
        try:
            answer = hear(channel)
        except (OSError, ValueError):
            break
        if "loading" not in answer:
            return answer
        limit, silent = patience, 0.0
    raise RankError(f"rank {rank} {fate(rank)} while it loaded the model", rank)
