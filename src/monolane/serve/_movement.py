"""Whether what runs still moves: what /health goes by.

Tokens alone would not tell: a long prompt may take minutes until its first one. So the places of
the running sequences, in prompt or answer, are looked at too, several times within what counts as a
stall.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

_LOOKS = 8  # within the seconds that count as a stall
_LONGEST = 1.0  # second between two looks


class Movement:
    """When something last moved; any thread may say that something has."""

    def __init__(self, positions: Callable[[], Sequence[object]], stall_seconds: float) -> None:
        """``positions``: where each running sequence is by now; for the event loop's thread."""
        self._positions, self._stall = positions, stall_seconds
        self._seen: Sequence[object] = ()
        self._moved = time.monotonic()

    def note(self) -> None:
        """Say that a token was drawn, or a sequence begun."""
        self._moved = time.monotonic()

    @property
    def stalled(self) -> bool:
        """Whether nothing has moved for too long; only where something runs is that a fault."""
        return time.monotonic() - self._moved > self._stall

    async def watch(self) -> None:
        """Look on until cancelled."""
        while True:
            await asyncio.sleep(min(_LONGEST, self._stall / _LOOKS))
            now = self._positions()
            if now != self._seen:
                self._seen = now
                self.note()
