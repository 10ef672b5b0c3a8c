"""Which request holds which slot of the backend."""

import threading

from monolane.errors import RequestError


class SlotPool:
    """Hands out slots; a caller waits while all are taken by other threads."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))
        self._holders: dict[int, int] = {}  # slot -> thread that took it
        self._changed = threading.Condition()

    def take(self) -> int:
        """Return a free slot, waiting for one if need be."""
        me = threading.get_ident()
        with self._changed:
            while not self._free:
                if all(holder == me for holder in self._holders.values()):
                    raise RequestError(
                        f"all {len(self._holders)} sequences of this engine are open streams of "
                        "this same thread, so waiting would never end: finish or close one, or "
                        "load the engine with a larger max_sequences"
                    )
                self._changed.wait()
            slot = self._free.pop()
            self._holders[slot] = me
            return slot

    def give(self, slot: int) -> None:
        """Take a slot back."""
        with self._changed:
            del self._holders[slot]
            self._free.append(slot)
            self._changed.notify()
