"""Keys and values of one sequence, and the states of its layers with a gated delta rule.

Windowed layers keep all of their keys: obvious beats small here. States are those behind the last
token alone, so a sequence with states goes back to its beginning or not at all.

Keys and values are float32 numbers, rounded to what the cache's dtype can hold: small is not the
point either.
"""

import numpy as np
import numpy.typing as npt

from monolane.errors import RequestError
from monolane.model import ModelConfig
from monolane.reference._operations import Floats
from monolane.reference._rounding import find_rounding


class Cache:
    """KV of up to ``capacity`` tokens; ``length`` of them are filled, and may be taken back."""

    def __init__(self, config: ModelConfig, capacity: int, cache_dtype: str = "auto") -> None:
        self._rounded = find_rounding(cache_dtype, config.cached_width)
        lanes, heads = config.num_lanes, config.cached_heads // config.num_lanes
        # Where a layer's keys are among those of the layers that have some, and states likewise.
        deltas = [i for i, layer in enumerate(config.layers) if layer.delta]
        others = [i for i, layer in enumerate(config.layers) if not layer.delta]
        self._places = {i: place for kind in (deltas, others) for place, i in enumerate(kind)}
        shape = (len(others), lanes, capacity, heads, config.cached_width)
        self.capacity = capacity
        self.length = 0
        self.stale = False  # the states are not of the positions that were restored last
        # Keys and values, or latents: each [N, L, capacity, K, h].
        self._lists = [np.zeros(shape, np.float32) for _ in range(config.cached_lists)]
        # Of each layer the states [U, k, v], and the channels' last inputs [C - 1, c].
        self._states: Floats = np.zeros((0,), np.float32)
        self._inputs: Floats = self._states
        if (delta := config.delta) is not None:
            count, state = len(deltas), (delta.value_heads, delta.key, delta.value)
            self._states = np.zeros((count, *state), np.float32)
            self._inputs = np.zeros((count, delta.kernel - 1, delta.channels), np.float32)

    def append(self, layer: int, *new_LTKh: Floats) -> tuple[Floats, ...]:
        """Write a pass's keys and values behind the filled part; return all up to and with them.

        Or its latents. ``length`` moves once per pass, by ``advance``: all layers append at the
        same place.
        """
        end = self.length + new_LTKh[0].shape[1]
        place = self._places[layer]
        for cached, new in zip(self._lists, new_LTKh, strict=True):
            cached[place, :, self.length : end] = self._rounded(new)
        return tuple(cached[place, :, :end] for cached in self._lists)

    def state(self, layer: int) -> tuple[Floats, Floats]:
        """Return a layer's states [U, k, v] and its channels' last inputs [C - 1, c]."""
        place = self._places[layer]
        return self._states[place], self._inputs[place]

    def set_state(self, layer: int, state_Ukv: Floats, inputs_Xc: Floats) -> None:
        """Hold the states behind a pass's last token, and the inputs up to and with its own."""
        place = self._places[layer]
        self._states[place] = state_Ukv
        self._inputs[place] = inputs_Xc[len(inputs_Xc) - self._inputs.shape[1] :]

    @property
    def nbytes(self) -> int:
        """Bytes that it takes once it is full."""
        return sum(array.nbytes for array in (*self._lists, self._states, self._inputs))

    def advance(self, count: int) -> None:
        """Count the tokens of a finished pass as filled."""
        self.length += count

    def copy_from(self, other: "Cache") -> None:
        """Hold what another cache of the same model holds."""
        for mine, theirs in zip(self._lists, other._lists, strict=True):
            mine[:] = theirs
        self._states[:], self._inputs[:] = other._states, other._inputs
        self.length, self.stale = other.length, other.stale

    def save(self, begin: int, end: int) -> npt.NDArray[np.uint8]:
        """Return positions begin to end - 1: uint8 [U, T, r], r = 4 * K * h.

        U = 2 * N * L, of keys and then of values; of latents N * L.
        """
        layers, lanes, _, heads, width = self._lists[0].shape
        each = np.stack([cached[:, :, begin:end] for cached in self._lists])
        rows = each.reshape(len(self._lists) * layers * lanes, end - begin, heads * width)
        return np.ascontiguousarray(rows).view(np.uint8)

    def save_tail(self, end: int) -> npt.NDArray[np.uint8] | None:
        """Return the states behind position ``end - 1``; None where there are none, or no more."""
        if end != self.length or not self._states.size or self.stale:
            return None
        return np.concatenate([self._states.ravel(), self._inputs.ravel()]).view(np.uint8)

    def restore_tail(self, tail: npt.NDArray[np.uint8]) -> None:
        """Put saved states behind the last position."""
        states, inputs = np.split(tail.view(np.float32), [self._states.size])
        self._states[:] = states.reshape(self._states.shape)
        self._inputs[:] = inputs.reshape(self._inputs.shape)
        self.stale = False

    def restore(self, rows_UTr: npt.NDArray[np.uint8]) -> None:
        """Put saved positions behind the filled part; states do not follow by themselves."""
        end = self.length + rows_UTr.shape[1]
        rows = np.ascontiguousarray(rows_UTr).view(np.float32)
        for cached, own in zip(self._lists, np.split(rows, len(self._lists)), strict=True):
            part = cached[:, :, self.length : end]
            part[:] = own.reshape(part.shape)
        self.length = end
        self.stale = self._states.size > 0

    def truncate(self, length: int) -> None:
        """Take back all tokens from ``length`` on; RequestError where states cannot go back."""
        assert 0 <= length <= self.length
        if self._states.size and 0 < length < self.length:
            raise RequestError(
                f"length: expected 0 or {self.length}, the tokens that the states of this model's "
                f"layers with a gated delta rule are of, got {length}"
            )
        if length == 0:
            self._states[:], self._inputs[:] = 0, 0
            self.stale = False
        self.length = length
