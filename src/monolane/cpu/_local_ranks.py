"""The processes of the ranks 1.., seen from rank 0: started, watched by their sockets, ended.

A rank is a new Python process and not a fork: this one has threads. It ends when its socket does,
so none is left when rank 0 ends, however that happens.
"""

import socket
import subprocess
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from monolane._core import Executor as NativeExecutor
from monolane.cpu._idle import Idleness
from monolane.cpu._native import Setting
from monolane.cpu._rank_messages import STALLED, await_answer, say
from monolane.errors import BackendError

_ENDING = 60.0  # seconds that a process may take to end once its socket has closed


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
            command = [sys.executable, "-P", "-m", "monolane.cpu._rank_main"]
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
            wish = {"source": str(source), "config": config, "rank": rank}
            with suppress(ConnectionError):  # it is dead already: ``wait`` says so
                say(ours, wish | {"setting": setting.wish()})

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids."""
        return tuple(process.pid for process in self._processes)

    def wait(self, patience: float) -> None:
        """Wait until all ranks are ready; RankError or BackendError if one is not.

        A rank that is not heard of for ``patience`` seconds, in which it neither had nor wanted a
        core or a disk, hangs, or is stopped.
        """
        for rank, (ours, process) in enumerate(zip(self._sockets, self._processes, strict=True), 1):
            is_idle = Idleness(process.pid).is_idle
            answer = await_answer(ours, rank, patience, self.fate, is_idle)
            if "error" in answer:
                raise BackendError(f"rank {rank}: {answer['error']}")

    def watch(self, core: NativeExecutor, patience: float) -> None:
        """Have the core find them lost: a rank's end makes its socket readable."""
        core.watch([one.fileno() for one in self._sockets], round(patience * 1e9))

    def fate(self, rank: int) -> str:
        """Return what became of a rank: a verb, for people."""
        process = self._processes[rank - 1]
        try:
            # Its socket closes before it can be waited for: long before, on a busy machine.
            status = process.wait(_ENDING if _has_ended(self._sockets[rank - 1]) else 0.5)
        except subprocess.TimeoutExpired:
            return STALLED
        return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"

    def close(self) -> None:
        """End the processes. Harmless when called twice."""
        self._end()


def _has_ended(channel: socket.socket) -> bool:
    try:
        return not channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _end(processes: Sequence["subprocess.Popen[bytes]"], sockets: Sequence[socket.socket]) -> None:
    for one in sockets:
        one.close()
    for process in processes:
        process.kill()  # nothing in it is worth saving, and it may be stopped
    for process in processes:
        process.wait()
