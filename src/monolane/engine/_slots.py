"""Which request holds which slot of the backend."""

import threading
from collections.abc import Callable

from monolane.errors import RequestError

_LOOK = 0.1  # seconds until a wait sees that it is cancelled, where nobody wakes it


class SlotPool:
    """Hands out slots; a caller waits while all are taken by other threads."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))
        self._holders: dict[int, int] = {}  # slot -> thread that took it
        self._changed = threading.Condition()

    def take(self, cancelled: Callable[[], bool] = lambda: False) -> int | None:
        """Return a free slot, waiting for one if need be; None once ``cancelled``.

        Who makes that true may ``wake`` those who wait, to have them see it at once.
        """
        me = threading.get_ident()
        # Of other threads, those of a pool may take a slot for one stream and read another next,
        # while somebody else reads the first to its end.
        alone = threading.current_thread() is threading.main_thread()
        with self._changed:
            while not self._free:
                if cancelled():
                    return None
                if alone and all(holder == me for holder in self._holders.values()):
                    raise RequestError(
                        f"all {len(self._holders)} sequences of this engine are open streams of "
                        "this same thread, so waiting would never end: finish or close one, or "
                        "load the engine with a larger max_sequences"
                    )
                self._changed.wait(_LOOK)
            slot = self._free.pop()
            self._holders[slot] = me
            return slot

    def give(self, slot: int) -> None:
        """Take a slot back."""
        with self._changed:
            del self._holders[slot]
            self._free.append(slot)
            self._changed.notify_all()  # not of one, which may have been cancelled

    def wake(self) -> None:
        """Have all who wait look whether they are cancelled."""
        with self._changed:
            self._changed.notify_all()
