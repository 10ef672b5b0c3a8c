"""Ranks that are joined by TCP, here all on this host: as threads, or as processes to be struck."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from monolane.cpu import RankListener
from monolane.executor_api import RankAddresses
from monolane.model import Weights

KEY = b"a key of more than 16 bytes"


@contextmanager
def listening(folder: Path, count: int, key: bytes = KEY) -> Iterator[RankAddresses]:
    """So many ranks of a model that can be joined, in threads of this process."""
    weights = Weights.open(folder)
    with ExitStack() as stack:
        addresses = []
        for _ in range(count):
            listener = RankListener(weights, "127.0.0.1:0", key)
            thread = threading.Thread(target=listener.serve)
            thread.start()
            stack.callback(thread.join)
            stack.callback(listener.close)
            addresses.append(listener.address)
        yield RankAddresses(tuple(addresses), key)


class RankProcess:
    """``monolane rank`` in a process of its own."""

    def __init__(self, model: Path, address: str = "127.0.0.1:0") -> None:
        words = ["rank", "--listen", address, "--model", str(model)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "monolane", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"MONOLANE_RANK_KEY": KEY.decode()},
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().split()[-1]

    def send(self, kind: signal.Signals) -> None:
        self._process.send_signal(kind)

    def end(self) -> int:
        """Terminate it; return its exit code.

        Not Ctrl-C, which what runs in the background of a shell does not hear.
        """
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        with self._process:
            try:
                return self._process.wait(60)
            finally:
                self._process.kill()
