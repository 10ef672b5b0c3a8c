"""Back-off for wrong keys: of whoever sends many, each further reply comes later.

A valid key never waits, also from the same address: behind a proxy all have one. Nobody guesses a
key that was made here; this keeps whoever tries from costing more than a few replies a second.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

_FREE = 10  # wrong keys that are answered at once
_FIRST, _LONGEST = 0.05, 2.0  # seconds: doubled with each further one
_MEMORY = 60.0  # seconds without a wrong key, after which an address is forgotten
_ADDRESSES = 4096


class WrongKeys:
    """How many wrong keys each address has sent lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: OrderedDict[str, tuple[float, int]] = (
            OrderedDict()
        )  # the last one, and how many

    def pause(self, address: str) -> float:
        """Count a wrong key, and return the seconds that its reply is to wait."""
        now = self._clock()
        last, count = self._seen.pop(address, (now, 0))
        count = 1 if now - last > _MEMORY else count + 1
        self._seen[address] = now, count
        while len(self._seen) > _ADDRESSES:
            self._seen.popitem(last=False)
        return min(_LONGEST, _FIRST * 2.0 ** min(count - _FREE - 1, 16)) if count > _FREE else 0.0
