"""What other programs do on this machine while something is timed: they slow it down, unevenly."""

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_POLL = 0.25  # seconds


class Neighbours:
    """The CPU time of everybody but this process and its finished children; Linux only."""

    def __init__(self, patience: float, limit: float = 0.1) -> None:
        """Wait for others to come to rest, ``patience`` seconds in all, not each time.

        ``limit``: cores that they may use; a tenth, because the system counts in steps of 10 ms.
        """
        self.patience = patience  # what is left of it
        self._limit = limit
        self._then = self._now()

    def await_quiet(self) -> None:
        """Return when others rest, or when patience is at its end; what follows is watched."""
        while self.patience > 0:
            self._then = self._now()
            time.sleep(_POLL)
            if self.were_quiet():
                break
            self.patience -= _POLL
        self._then = self._now()

    def were_quiet(self) -> bool:
        """Return whether others kept below the limit since the last ``await_quiet`` returned."""
        then, now = self._then, self._now()
        return now[1] - then[1] <= self._limit * (now[0] - then[0])

    @staticmethod
    def _now() -> tuple[float, float]:
        """Return the time, and the seconds of CPU that others have used since the machine began."""
        ours = sum(os.times()[:4])
        if not _STAT.is_file():
            return time.monotonic(), 0.0
        user, nice, system, _idle, _wait, irq, soft = map(int, _STAT.read_text().split()[1:8])
        busy = (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), busy - ours
