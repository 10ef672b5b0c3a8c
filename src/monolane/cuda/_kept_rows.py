"""Keys and values on their way between the cache of GPUs and the host, which keeps prefixes.

In the cache a KV head has tiles of 16 positions, of keys and of values (kernels/attend.cuh). What
is kept has a row for each position. Layers with a window drop what no token sees any more: of them
a tail is kept, the rows that the next token sees.

Shape legend: I lists of rows (of each device, layer and KV head one of keys and one of values), T
positions, R bytes of a row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from monolane.cuda._device import Bytes, Device, Pinned
from monolane.cuda._layout import Layout
from monolane.executor_api import Kept, KeptBytes, bytes_of

_TILE = 16  # positions
_BLOCK = 512  # positions that are on their way at a time, of all lists of a device
_PATIENCE = 60.0  # seconds
# Where key k of a tile lies in a row of values: value_place of kernels/attend.cuh.
_PLACES = [k % 8 // 2 * 4 + k // 8 * 2 + k % 2 for k in range(_TILE)]


@dataclass(frozen=True, slots=True)
class _List:
    """One list of rows of a slot."""

    address: int  # of its first tile
    values: bool  # whose tiles are the other way round
    capacity: int  # positions: p lies where p % capacity does


class KeptRows:
    """Reads and writes rows of slots; between epochs."""

    def __init__(self, devices: Sequence[Device], caches: Sequence[int], layout: Layout) -> None:
        self._devices, self._caches, self._layout = devices, caches, layout
        self._row = layout.kv_row_bytes
        context = -(-layout.plan.context // _TILE) * _TILE
        numbers = range(len(layout.layers))
        self._rings = [i for i in numbers if layout.layers[i].capacity < context]
        self._whole = [i for i in numbers if i not in self._rings]
        self._staging: list[Pinned] = []  # of each device, made when it is needed

    @property
    def tail_positions(self) -> int:
        """Positions of a tail at most; 0: no layer drops any."""
        return max((self._layout.layers[i].window for i in self._rings), default=0)

    def save(self, slot: int, begin: int, end: int, with_tail: bool) -> Kept:
        """Return the rows of positions ``begin`` to ``end - 1``, and the tail of ``end``."""
        tail = None
        if with_tail and self._rings:
            parts = [self._read(slot, [i], self._seen(i, end), end) for i in self._rings]
            tail = np.concatenate([part.reshape(-1) for part in parts])
        return KeptBytes(self._read(slot, self._whole, begin, end), tail)

    def restore(self, slot: int, begin: int, kept: Kept, count: int) -> bool:
        """Put the first ``count`` positions behind ``begin``; return whether the tail came, too."""
        found = bytes_of(kept)
        self._write(slot, self._whole, begin, found.rows[:, :count])
        if found.tail is None or count < found.positions:
            return not self._rings
        end, at = begin + count, 0
        for i in self._rings:
            first = self._seen(i, end)
            lists = len(list(self._lists(slot, [i])))
            size = lists * (end - first) * self._row
            self._write(slot, [i], first, found.tail[at : at + size].reshape(lists, -1, self._row))
            at += size
        return True

    def copy(self, source: int, target: int) -> None:
        """Make the cache of a slot that of another."""
        nbytes, staging = self._layout.kv_bytes, self._pin()
        for device, cache, pinned in zip(self._devices, self._caches, staging, strict=True):
            for at in range(0, nbytes, pinned.array.size):
                size = min(pinned.array.size, nbytes - at)
                device.copy_out(pinned, cache + source * nbytes + at, size)
                device.copy_in(cache + target * nbytes + at, pinned, size)
        for device in self._devices:
            device.wait(device.mark(), _PATIENCE)

    def _seen(self, layer: int, end: int) -> int:
        """Return the first position that the token behind ``end - 1`` sees."""
        return max(0, end - self._layout.layers[layer].window + 1)

    # ---- rows ------------------------------------------------------------------------------------
    def _read(self, slot: int, layers: Sequence[int], begin: int, end: int) -> Bytes:
        """Return rows of some layers: [I, T, R]."""
        lists = list(self._lists(slot, layers))
        rows = np.empty((len(lists), end - begin, self._row), np.uint8)
        for number, own, first, last in self._blocks(lists, begin, end):
            device, pieces = self._devices[number], self._pieces(number, len(own), last - first)
            for (_, one), piece in zip(own, pieces, strict=True):
                device.copy_out(piece, self._place(one, first), piece.array.size)
            device.wait(device.mark(), _PATIENCE)
            low, high = max(first, begin), min(last, end)
            for (i, one), piece in zip(own, pieces, strict=True):
                found = _as_rows(piece.array, one.values, self._row)
                rows[i, low - begin : high - begin] = found[low - first : high - first]
        return rows

    def _write(self, slot: int, layers: Sequence[int], begin: int, rows: Bytes) -> None:
        """Put rows [I, T, R] of some layers where positions from ``begin`` on lie."""
        lists, end = list(self._lists(slot, layers)), begin + rows.shape[1]
        if begin == end:
            return
        if begin % _TILE:  # what the first tile holds stays
            first = begin - begin % _TILE
            before = self._read(slot, layers, first, begin)
            rows, begin = np.concatenate([before, rows], axis=1), first
        rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % _TILE), (0, 0)))
        for number, own, first, last in self._blocks(lists, begin, end):
            device, pieces = self._devices[number], self._pieces(number, len(own), last - first)
            for (i, one), piece in zip(own, pieces, strict=True):
                piece.array[:] = _as_tiles(rows[i, first - begin : last - begin], one.values)
                device.copy_in(self._place(one, first), piece, piece.array.size)
            device.wait(device.mark(), _PATIENCE)

    def _lists(self, slot: int, layers: Sequence[int]) -> Iterator[tuple[int, _List]]:
        """Yield lists with the numbers of their devices, device after device."""
        layout = self._layout
        heads = layout.plan.config.num_kv_heads // layout.devices
        for number, cache in enumerate(self._caches):
            for i in layers:
                layer = layout.layers[i]
                at = cache + slot * layout.kv_bytes + layer.kv_offset
                for part in range(2 * heads):
                    address = at + part * layer.capacity * self._row
                    yield number, _List(address, part % 2 == 1, layer.capacity)

    def _blocks(
        self, lists: Sequence[tuple[int, _List]], begin: int, end: int
    ) -> Iterator[tuple[int, list[tuple[int, _List]], int, int]]:
        """Yield (device, its lists by number, first and last position) of whole tiles in a row."""
        for number in range(len(self._devices)):
            own = [(i, one) for i, (where, one) in enumerate(lists) if where == number]
            first, stop = begin - begin % _TILE, end + -end % _TILE
            while own and begin < end and first < stop:
                capacity = own[0][1].capacity  # of all of them: rings are asked for one by one
                last = min(first + self._step(len(own)), stop, first - first % capacity + capacity)
                yield number, own, first, last
                first = last

    def _step(self, lists: int) -> int:
        """Return how many positions of so many lists the staging holds, in whole tiles."""
        room = self._pin()[0].array.size // (lists * self._row * _TILE)
        return max(1, room) * _TILE

    def _place(self, one: _List, position: int) -> int:
        return one.address + position % one.capacity * self._row

    def _pieces(self, number: int, count: int, positions: int) -> list[Pinned]:
        """Return parts of a device's staging for so many lists."""
        pinned, size = self._pin()[number], positions * self._row
        return [
            Pinned(pinned.address + i * size, pinned.array[i * size : (i + 1) * size])
            for i in range(count)
        ]

    def _pin(self) -> list[Pinned]:
        if not self._staging:
            layout = self._layout
            lists = 2 * len(layout.layers) * layout.plan.config.num_kv_heads // layout.devices
            positions = min(_BLOCK, -(-layout.plan.context // _TILE) * _TILE)
            self._staging = [x.pin(lists * positions * self._row) for x in self._devices]
        return self._staging


def _as_rows(raw: Bytes, values: bool, row: int) -> Bytes:
    """Return the positions of tiles, [T, R]."""
    if not values:
        return raw.reshape(-1, row)
    tiles = raw.view(np.uint16).reshape(-1, row // 2, _TILE)[..., _PLACES]
    return np.ascontiguousarray(tiles.swapaxes(1, 2)).view(np.uint8).reshape(-1, row)


def _as_tiles(rows: Bytes, values: bool) -> Bytes:
    """Return the bytes of the tiles of positions [T, R]."""
    if not values:
        return rows.reshape(-1)
    there = np.ascontiguousarray(rows).view(np.uint16).reshape(-1, _TILE, rows.shape[1] // 2)
    tiles = np.empty_like(there.swapaxes(1, 2))
    tiles[..., _PLACES] = there.swapaxes(1, 2)
    return np.ascontiguousarray(tiles).view(np.uint8).reshape(-1)
