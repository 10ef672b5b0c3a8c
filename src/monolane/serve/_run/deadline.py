"""When a request is given up: at the server's deadline, of which reading a prompt takes nothing.

On a CPU a long prompt may take longer to read than any sensible deadline for an answer. As long as
it moves, its client gets what it asked for; once it stands still, that is a stall like any other.
"""

from collections.abc import Sequence

from monolane.serve._run.choice import Choice

_LEAST = 0.25  # seconds between two looks at a prompt that is being read


class Deadline:
    """The deadline of one request; moments are time.perf_counter_ns()."""

    def __init__(
        self, choices: Sequence[Choice], arrived: int, seconds: float, stall_seconds: float
    ) -> None:
        """``seconds`` from the request's arrival, without those in which a prompt was read.

        A prompt of which no token was read for ``stall_seconds`` is not being read any more.
        """
        self._choices, self._arrived = choices, arrived
        self._seconds, self._stall = seconds, stall_seconds
        self._places: dict[int, int] = {}  # tokens read, by the choice's index
        self._moved = arrived  # when they had last changed

    def left(self, now: int) -> float:
        """Return the seconds until the next look; none where the request is to be given up."""
        taken = now - self._arrived - self._reading(now)
        left = self._seconds - taken / 1e9
        places = {
            choice.index: choice.stream.position
            for choice in self._choices
            if choice.admitted and not choice.first
        }
        if places != self._places:
            self._places, self._moved = places, now
        if left <= 0 or not places:
            return max(0.0, left)
        if (now - self._moved) / 1e9 >= self._stall:
            return 0.0
        return max(_LEAST, min(left, self._stall))

    def _reading(self, now: int) -> int:
        """Return the nanoseconds in which any prompt was being read."""
        spans = sorted((c.admitted, c.first or now) for c in self._choices if c.admitted)
        total = end = 0
        for begin, until in spans:
            total += max(0, until - max(begin, end))
            end = max(end, until)
        return total
