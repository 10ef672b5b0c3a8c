"""Whether a process of this host could do something and does nothing: what silence of it means.

On a busy machine a rank that wants to load may get no core for long. Then it says nothing, and no
clock tells it from one that hangs. The kernel does: a thread that wants a core is runnable, one
that waits for a disk is in an uninterruptible wait, and who had a core has used processor time.
"""

from contextlib import suppress
from pathlib import Path

_WANTS = "RD"  # states of a thread: runs or is runnable, waits for a disk; as in proc(5)


class Idleness:
    """Looks at one process again and again."""

    def __init__(self, process: int) -> None:
        self._tasks = Path(f"/proc/{process}/task")
        self._used = -1

    def is_idle(self) -> bool:
        """Tell whether no thread wants a core or a disk, and none had a core since the last look.

        A process that is stopped is idle, and so is one that has ended.
        """
        before, self._used, wants = self._used, 0, False
        with suppress(OSError):  # it has ended
            for task in self._tasks.iterdir():
                with suppress(OSError):  # the thread has ended meanwhile
                    fields = (task / "stat").read_text().rpartition(")")[2].split()
                    wants = wants or fields[0] in _WANTS
                    # utime and stime, ticks of 10 ms: a busy thread is runnable besides.
                    self._used += int(fields[11]) + int(fields[12])
        return not wants and self._used == before
