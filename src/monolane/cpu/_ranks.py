"""The processes of the ranks 1.., seen from rank 0: started, watched by their sockets, ended.

A rank is a new Python process and not a fork: this one has threads. It ends when its socket does,
so none is left when rank 0 ends, however that happens.
"""

import json
import logging
import select
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from monolane.cpu._native import Setting
from monolane.errors import BackendError, RankError

log = logging.getLogger("monolane.cpu")

# Seconds that a rank may take to load its lanes; and to say its first word, which comes as soon as
# its interpreter has started. From then on it says that it is alive, twice a second.
_LOADING = 600.0
_STARTING = 10.0

# A wait for a word counts slices, not the clock: while all ranks are stopped together, as by
# Ctrl-Z, none is late.
_SLICE = 0.1

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
            with suppress(ConnectionError):  # it is dead already: ``wait`` says so
                ours.sendall(json.dumps(wish).encode() + b"\n")

    @property
    def sockets(self) -> list[int]:
        """File descriptors, each of which the end of a rank makes readable."""
        return [one.fileno() for one in self._sockets]

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids."""
        return tuple(process.pid for process in self._processes)

    def wait(self, patience: float) -> None:
        """Wait until all ranks are ready; RankError or BackendError if one is not.

        A rank that is not heard of for ``patience`` seconds hangs, or is stopped.
        """
        end = time.monotonic() + _LOADING
        for rank in range(1, len(self._sockets) + 1):
            answer = self._answer(rank, patience, end)
            if "error" in answer:
                raise BackendError(f"rank {rank}: {answer['error']}")

    def _answer(self, rank: int, patience: float, end: float) -> dict[str, Any]:
        """Return what a rank says when it is done loading."""
        ours, said = self._sockets[rank - 1], b""
        limit, silent = max(patience, _STARTING), 0.0
        while silent < limit and time.monotonic() < end:
            if not select.select([ours], [], [], _SLICE)[0]:
                silent += _SLICE
                continue
            found = b""
            with suppress(ConnectionError):
                found = ours.recv(4096)
            if not found:
                raise RankError(f"rank {rank} {self.fate(rank)} while it loaded the model", rank)
            *lines, said = (said + found).split(b"\n")
            for line in lines:
                answer: dict[str, Any] = json.loads(line)
                if "loading" not in answer:
                    return answer
            limit, silent = patience, 0.0
        raise RankError(f"rank {rank} {STALLED} while it loaded the model", rank)

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
