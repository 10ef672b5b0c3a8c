"""The processes of the ranks 1.., seen from rank 0: started, watched by their sockets, ended.

A rank is a new Python process and not a fork: this one has threads. It ends when its socket does,
so none is left when rank 0 ends, however that happens.
"""

import json
import logging
import socket
import subprocess
import sys
import weakref
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from monolane.cpu._native import Setting
from monolane.errors import BackendError, RankError

log = logging.getLogger("monolane.cpu")

# Seconds that a rank may take to load its lanes.
_LOADING = 600.0

STALLED = "made no progress"


class Ranks:
    """The ranks 1.. of a setting, loading since this was made; ``wait`` until they are ready."""

    def __init__(self, source: Path, config: str, setting: Setting, segment: int) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._sockets: list[socket.socket] = []
        # Also where nobody calls close: at the end of the interpreter.
        self._end = weakref.finalize(self, _end, self._processes, self._sockets)
        for rank in range(1, setting.ranks):
            ours, theirs = socket.socketpair()
            self._sockets.append(ours)
            command = [sys.executable, "-P", "-m", "monolane.cpu._rank"]
            numbers = (theirs.fileno(), segment)
            with theirs:
                self._processes.append(
                    subprocess.Popen(
                        [*command, *map(str, numbers)],
                        pass_fds=numbers,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                    )
                )
            wish = {"source": str(source), "config": config, "rank": rank, **asdict(setting)}
            ours.settimeout(_LOADING)
            ours.sendall(json.dumps(wish).encode() + b"\n")

    @property
    def sockets(self) -> list[int]:
        """File descriptors, each of which the end of a rank makes readable."""
        return [one.fileno() for one in self._sockets]

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids."""
        return tuple(process.pid for process in self._processes)

    def wait(self) -> None:
        """Wait until all ranks are ready; RankError or BackendError if one is not."""
        for rank, ours in enumerate(self._sockets, 1):
            try:
                with ours.makefile("rb") as channel:
                    line = channel.readline()
            except TimeoutError:
                raise RankError(
                    f"rank {rank}: expected it to have loaded within {_LOADING:.0f} s; it hangs",
                    rank,
                ) from None
            except ConnectionError:
                line = b""
            if not line:
                raise RankError(f"rank {rank} {self.fate(rank)} while it loaded the model", rank)
            answer = json.loads(line)
            if "error" in answer:
                raise BackendError(f"rank {rank}: {answer['error']}")

    def fate(self, rank: int) -> str:
        """Return what became of a rank: a verb, for people."""
        process = self._processes[rank - 1]
        try:
            # Its socket closes before it can be waited for.
            status = process.wait(0.5)
        except subprocess.TimeoutExpired:
            return STALLED
        return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"

    def close(self) -> None:
        """End the processes. Harmless when called twice."""
        self._end()


def _end(processes: Sequence["subprocess.Popen[bytes]"], sockets: Sequence[socket.socket]) -> None:
    for one in sockets:
        one.close()
    for process in processes:
        process.kill()  # nothing in it is worth saving, and it may be stopped
    for process in processes:
        process.wait()
