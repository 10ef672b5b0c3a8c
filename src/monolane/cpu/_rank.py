"""A rank other than 0: a process that loads its lanes and takes part in every epoch of rank 0.

Run by ``_ranks.py`` as ``python -m monolane.cpu._rank SOCKET SEGMENT``, both file descriptors.
"""

import json
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from monolane.cpu._native import Native, Setting
from monolane.errors import CheckpointError, MonolaneError
from monolane.model import Weights


def main() -> None:
    """Load, say so, and decode until rank 0 closes the socket or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; what it means, rank 0 says
    ours = socket.socket(fileno=int(sys.argv[1]))
    with ours.makefile("rb") as channel:
        wish = json.loads(channel.readline())
    try:
        native = _load(wish, segment=int(sys.argv[2]))
        native.core.follow()
    except MonolaneError as error:
        _say(ours, {"error": str(error)})
        return
    _say(ours, {"ready": True})
    ours.recv(1)


def _load(wish: dict[str, Any], segment: int) -> Native:
    source, config, rank = Path(wish.pop("source")), wish.pop("config"), wish.pop("rank")
    weights = Weights.open(source)
    if repr(weights.config) != config:
        raise CheckpointError(f"{source}: its config is not the one that rank 0 read; load it anew")
    native = Native(weights, Setting(**wish), rank, segment)
    native.convert()
    return native


def _say(ours: socket.socket, answer: dict[str, Any]) -> None:
    ours.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
