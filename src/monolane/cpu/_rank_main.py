"""A rank other than 0: a process that loads its lanes and takes part in every epoch of rank 0.

Run by ``_local_ranks.py`` as ``python -m monolane.cpu._rank_main SOCKET SEGMENT``, both file
descriptors.
"""

import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolane.cpu._rank_messages import beating, hear, say

if TYPE_CHECKING:
    from monolane.cpu._native import Native


def main() -> None:
    """Load, say so, and decode until rank 0 closes the socket or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; what it means, rank 0 says
    ours = socket.socket(fileno=int(sys.argv[1]))
    with beating(ours):
        answer, native = _try(ours, segment=int(sys.argv[2]))
    say(ours, answer)
    if native is not None:
        ours.recv(1)


def _try(ours: socket.socket, segment: int) -> "tuple[dict[str, Any], Native | None]":
    """Return what to tell rank 0, and what takes part in its epochs if all went well."""
    from monolane.cpu._errors import our_errors
    from monolane.errors import MonolaneError

    wish = hear(ours)
    try:
        native = _load(wish, segment)
        with our_errors():
            native.core.follow()
    except MonolaneError as error:
        return {"error": str(error)}, None
    return {"ready": True}, native


def _load(wish: dict[str, Any], segment: int) -> "Native":
    # Here, and not above: the first word to rank 0 does not wait for these.
    from monolane.cpu._native import Native, Setting
    from monolane.errors import CheckpointError
    from monolane.model import Weights

    source = Path(wish["source"])
    weights = Weights.open(source)
    if repr(weights.config) != wish["config"]:
        raise CheckpointError(f"{source}: its config is not the one that rank 0 read; load it anew")
    native = Native(weights, Setting.of_wish(wish["setting"]), wish["rank"], segment)
    native.convert()
    return native


if __name__ == "__main__":
    main()
