"""Keys and values of one sequence, and the states of its layers.

Windowed layers keep all of their keys: obvious beats small here. States are those behind the last
token alone, so a sequence with states goes back to its beginning or not at all.

Keys and values are float32 numbers, rounded to what the cache's dtype can hold: small is not the
point either.
"""

import numpy as np
import numpy.typing as npt

from monolane.errors import RequestError
from monolane.model import Adapter, ModelConfig
from monolane.reference._computation import find_computation
from monolane.reference._operations import Floats
from monolane.reference._rounding import Rounding, find_rounding


class Cache:
    """KV of up to ``capacity`` tokens; ``length`` of them are filled, and may be taken back."""

    def __init__(self, config: ModelConfig, capacity: int, cache_dtype: str = "auto") -> None:
        self.capacity = capacity
        self.length = 0
        self.adapter: Adapter | None = None  # of the sequence
        self.stale = False  # the states are not of the positions that were restored last
        # Of the layers that have some: keys and values, latents and what else operations keep of
        # each token, each [L, capacity, heads, width].
        self._lists: dict[int, list[Floats]] = {}
        # Of the layers that have some: what their operations keep in a fixed size.
        self._states: dict[int, list[Floats]] = {}
        self._rounded: dict[int, list[Rounding]] = {}
        for i in range(config.num_layers):
            for module in config.modules[i]:
                computation = find_computation(module.operation)
                lanes = config.num_lanes
                if rows := computation.rows(module.operation, lanes):
                    each = ((lanes, capacity, row.heads, row.width) for row in rows)
                    self._lists[i] = [np.zeros(shape, np.float32) for shape in each]
                    self._rounded[i] = [
                        find_rounding(cache_dtype if row.rounded else "float32", row.width)
                        for row in rows
                    ]
                if shapes := computation.state(module.operation):
                    self._states[i] = [np.zeros(shape, np.float32) for shape in shapes]

    def append(self, layer: int, *new_LTKh: Floats, at: int = 0) -> tuple[Floats, ...]:
        """Write a pass's keys and values behind the filled part; return all up to and with them.

        Or its latents; ``at``: the place of the first in the operation's rows. ``length`` moves
        once per pass, by ``advance``: all layers append at the same place.
        """
        end, own = self.length + new_LTKh[0].shape[1], slice(at, at + len(new_LTKh))
        lists, rounded = self._lists[layer][own], self._rounded[layer][own]
        for cached, rounding, new in zip(lists, rounded, new_LTKh, strict=True):
            cached[:, self.length : end] = rounding(new)
        return tuple(cached[:, :end] for cached in lists)

    def appended(self, layer: int, width: int) -> tuple[Floats, ...]:
        """Return what ``append`` returned to an earlier layer in a pass of ``width`` tokens."""
        return tuple(cached[:, : self.length + width] for cached in self._lists[layer])

    def state(self, layer: int) -> list[Floats]:
        """Return what a layer's operation keeps, which it overwrites once a pass."""
        return self._states[layer]

    @property
    def nbytes(self) -> int:
        """Bytes that it takes once it is full."""
        return sum(array.nbytes for array in (*self._rows(), *self._kept()))

    def _rows(self) -> list[Floats]:
        return [cached for lists in self._lists.values() for cached in lists]

    def _kept(self) -> list[Floats]:
        return [array for each in self._states.values() for array in each]

    def advance(self, count: int) -> None:
        """Count the tokens of a finished pass as filled."""
        self.length += count

    def copy_from(self, other: "Cache") -> None:
        """Hold what another cache of the same model holds."""
        both = zip((*self._rows(), *self._kept()), (*other._rows(), *other._kept()), strict=True)
        for mine, theirs in both:
            mine[:] = theirs
        self.length, self.stale, self.adapter = other.length, other.stale, other.adapter

    def save(self, begin: int, end: int) -> npt.NDArray[np.uint8]:
        """Return positions begin to end - 1: uint8 [1, T, r], r the bytes of all that is cached."""
        each = [x[:, begin:end].swapaxes(0, 1).reshape(end - begin, -1) for x in self._rows()]
        return np.concatenate(each, axis=1)[None].view(np.uint8)

    def save_tail(self, end: int) -> npt.NDArray[np.uint8] | None:
        """Return the states behind position ``end - 1``; None where there are none, or no more."""
        if end != self.length or not self._states or self.stale:
            return None
        return np.concatenate([array.ravel() for array in self._kept()]).view(np.uint8)

    def restore_tail(self, tail: npt.NDArray[np.uint8]) -> None:
        """Put saved states behind the last position."""
        _refill(self._kept(), tail.view(np.float32)[None])
        self.stale = False

    def restore(self, rows_UTr: npt.NDArray[np.uint8]) -> None:
        """Put saved positions behind the filled part; states do not follow by themselves."""
        end = self.length + rows_UTr.shape[1]
        rows = np.ascontiguousarray(rows_UTr).view(np.float32)[0]
        _refill([x[:, self.length : end].swapaxes(0, 1) for x in self._rows()], rows)
        self.length = end
        self.stale = bool(self._states)

    def truncate(self, length: int) -> None:
        """Take back all tokens from ``length`` on; RequestError where states cannot go back."""
        assert 0 <= length <= self.length
        if self._states and 0 < length < self.length:
            raise RequestError(
                f"length: expected 0 or {self.length}, the tokens that the states of this model's "
                f"layers are of, got {length}"
            )
        if length == 0:
            for array in self._kept():
                array[:] = 0
            self.stale = False
        self.length = length


def _refill(arrays: list[Floats], saved_TX: Floats) -> None:
    """Set arrays to what lies side by side in each row: [T, ...], or one row for the whole."""
    at = 0
    for array in arrays:
        columns = array.size // len(saved_TX)
        array[...] = saved_TX[:, at : at + columns].reshape(array.shape)
        at += columns
