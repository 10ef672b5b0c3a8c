"""Responses that are kept for a while, so that a request can go on from one by its id.

Each key has its own, and sees no other's. Bounded in count and in bytes; the one that was used
longest ago goes first.
"""

import threading
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
COUNT = 1000  # responses of one key
BYTES = 32 << 20  # of one key's


@dataclass(frozen=True, slots=True)
class Stored:
    """A response, ``items`` of the conversation up to its end, and the bytes that it counts for."""

    id: str
    response: bytes  # JSON, as it was sent
    items: tuple[Json, ...]
    size: int
    inputs: int = 0  # of the items, those that it was made from


@dataclass(slots=True)
class _Shelf:
    kept: "OrderedDict[str, Stored]" = field(default_factory=OrderedDict)
    size: int = 0


class ResponseStore:
    """All that is kept; used by the event loop and by the threads that read requests."""

    def __init__(self, count: int = COUNT, size: int = BYTES) -> None:
        self._count, self._size = count, size
        self._lock = threading.Lock()
        self._shelves: defaultdict[bytes, _Shelf] = defaultdict(_Shelf)  # by the hash of the key

    def put(self, owner: bytes, stored: Stored) -> None:
        """Keep a response, and let go of old ones."""
        with self._lock:
            shelf = self._shelves[owner]
            shelf.kept[stored.id] = stored
            shelf.size += stored.size
            while len(shelf.kept) > self._count or shelf.size > self._size:
                shelf.size -= shelf.kept.popitem(last=False)[1].size

    def get(self, owner: bytes, name: str) -> Stored | None:
        """Return one, which thereby becomes the last to go; None if there is none."""
        with self._lock:
            kept = self._shelves[owner].kept
            if name in kept:
                kept.move_to_end(name)
            return kept.get(name)

    def delete(self, owner: bytes, name: str) -> bool:
        """Forget one; False if there was none."""
        with self._lock:
            shelf = self._shelves[owner]
            if (found := shelf.kept.pop(name, None)) is None:
                return False
            shelf.size -= found.size
            return True

    def item(self, owner: bytes, name: str) -> Json | None:
        """Return an item of any conversation that is kept, by its id."""
        with self._lock:
            for stored in reversed(self._shelves[owner].kept.values()):
                for item in reversed(stored.items):
                    if item.get("id") == name:
                        return item
        return None
