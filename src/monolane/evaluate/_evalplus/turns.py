"""How long a sample ran, and how long it only waited for a processor: what tells a stall.

A limit of wall time ends sound code on a machine that has no time for it. The kernel counts both
for every thread (/proc/PID/task/TID/schedstat), throttling by a container's quota included.
"""

import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PERIOD = 0.2  # seconds between two looks; of a process that ends, no more than this is missed


@dataclass(frozen=True, slots=True)
class Turns:
    """Seconds: what the sample's threads ran together, and the most that any thread there waited.

    Together, so that a sample cannot starve itself with processes of its own.
    """

    ran: float = 0.0
    waited: float = 0.0


class Watch:
    """Looks at a process and all that it started, until ``end``.

    ``depth``: generations from the process to the sample's own; the scorer's come before.
    """

    def __init__(self, pid: int, depth: int) -> None:
        self._pid, self._depth = pid, depth
        self._threads: dict[str, tuple[int, Turns]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="eval-turns", daemon=True)
        self._thread.start()

    def end(self) -> Turns:
        """Look once more, and return what was seen; zeros where the kernel counts nothing."""
        self._over.set()
        self._thread.join()
        self._look(self._pid, 0)
        seen = self._threads.values()
        return Turns(
            sum(turns.ran for depth, turns in seen if depth >= self._depth),
            max((turns.waited for _, turns in seen), default=0.0),
        )

    def _look_on(self) -> None:
        while not self._over.wait(_PERIOD):
            self._look(self._pid, 0)

    def _look(self, pid: int, depth: int) -> None:
        """Note the threads of a process and of its children; it may end meanwhile."""
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                ran, waited, _ = (task / "schedstat").read_text().split()
                self._threads[task.name] = depth, Turns(int(ran) / 1e9, int(waited) / 1e9)
                for child in (task / "children").read_text().split():
                    self._look(int(child), depth + 1)
