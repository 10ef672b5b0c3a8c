"""Whether what runs still makes progress; /health says "stalled" where it does not.

Tokens alone would not tell: a long prompt may take minutes until its first one. So the places of
the running sequences, in prompt or answer, are looked at too, several times within what counts as a
stall.
"""

import asyncio
import time

from monolane.serve._run.choice import Choice

_LOOKS = 8  # within the seconds that count as a stall
_LONGEST = 1.0  # second between two looks


class StallWatch:
    """When there was progress last."""

    def __init__(self, stall_seconds: float) -> None:
        self.running: set[Choice] = set()  # for the event loop's thread
        self._stall = stall_seconds
        self._progressed = time.monotonic()

    def note(self) -> None:
        """Say that a token was drawn, or a sequence begun; from any thread."""
        self._progressed = time.monotonic()

    @property
    def stalled(self) -> bool:
        """Whether something runs, and has made no progress for too long."""
        return bool(self.running) and time.monotonic() - self._progressed > self._stall

    async def watch(self) -> None:
        """Look at the running sequences until cancelled."""
        seen: dict[Choice, int] = {}
        while True:
            await asyncio.sleep(min(_LONGEST, self._stall / _LOOKS))
            places = {choice: choice.stream.position for choice in self.running}
            if places != seen:
                seen = places
                self.note()
