"""Cases that are timed in turns, so that a machine that drifts drifts under all alike.

Other programs slow a case down, unevenly: a round waits for them, and looks for them afterwards.
"""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

_ATTEMPTS = 3  # at a sample that nobody disturbs
_STAT = Path("/proc/stat")
_POLL = 0.25  # seconds


class Case(ABC):
    """Something to be timed; it keeps its own samples."""

    def __init__(self) -> None:
        self.samples: list[float] = []

    @abstractmethod
    def measure(self) -> float:
        """Take one sample and return it."""

    def warm_up(self) -> None:
        """Touch everything once, untimed."""
        self.measure()

    def run(self) -> None:
        """Take one sample and keep it."""
        self.samples.append(self.measure())

    def forget(self) -> None:
        """Take the last sample back."""
        self.samples.pop()


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


def run_rounds(
    cases: Sequence[Case],
    rounds: int,
    progress: Callable[[], None],
    neighbours: Neighbours | None = None,
    *,
    first: int = 0,
) -> int:
    """Warm up, then take a sample of every case in each round; return how many were disturbed.

    Every other round goes backwards, so that of two cases neither always comes first, and two that
    are compared stay one right after the other. With ``neighbours``, a sample during which other
    programs ran is taken again, at most twice and while there is patience; one that is disturbed
    even then counts. ``first``: the round to begin with, where earlier ones were taken before.
    ``progress`` is called after every step: (rounds - first + 1) * len(cases) times.
    """
    for case in cases:
        case.warm_up()
        progress()
    disturbed = 0
    for i in range(first, rounds):
        for case in reversed(cases) if i % 2 else cases:
            disturbed += not _take(case, neighbours)
            progress()
    return disturbed


def _take(case: Case, neighbours: Neighbours | None) -> bool:
    """Take a sample; return whether nobody disturbed it."""
    if neighbours is None:
        case.run()
        return True
    for attempt in range(_ATTEMPTS):
        neighbours.await_quiet()
        case.run()
        if neighbours.were_quiet():
            return True
        if neighbours.patience <= 0 or attempt == _ATTEMPTS - 1:
            break
        case.forget()
    return False
