"""Keys and values of one sequence. Windowed layers keep all of theirs: obvious beats small here.

They are float32 numbers, rounded to what the cache's dtype can hold: small is not the point either.
"""

import numpy as np
import numpy.typing as npt

from monolane.model import ModelConfig
from monolane.reference._operations import Floats
from monolane.reference._rounding import find_rounding


class Cache:
    """KV of up to ``capacity`` tokens; ``length`` of them are filled, and may be taken back."""

    def __init__(self, config: ModelConfig, capacity: int, cache_dtype: str = "auto") -> None:
        self._rounded = find_rounding(cache_dtype, config.cached_width)
        lanes, heads = config.num_lanes, config.cached_heads // config.num_lanes
        shape = (config.num_layers, lanes, capacity, heads, config.cached_width)
        self.capacity = capacity
        self.length = 0
        # Keys and values, or latents: each [N, L, capacity, K, h].
        self._lists = [np.zeros(shape, np.float32) for _ in range(config.cached_lists)]

    def append(self, layer: int, *new_LTKh: Floats) -> tuple[Floats, ...]:
        """Write a pass's keys and values behind the filled part; return all up to and with them.

        Or its latents. ``length`` moves once per pass, by ``advance``: all layers append at the
        same place.
        """
        end = self.length + new_LTKh[0].shape[1]
        for cached, new in zip(self._lists, new_LTKh, strict=True):
            cached[layer, :, self.length : end] = self._rounded(new)
        return tuple(cached[layer, :, :end] for cached in self._lists)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes once it is full."""
        return sum(cached.nbytes for cached in self._lists)

    def advance(self, count: int) -> None:
        """Count the tokens of a finished pass as filled."""
        self.length += count

    def copy_from(self, other: "Cache") -> None:
        """Hold what another cache of the same model holds."""
        for mine, theirs in zip(self._lists, other._lists, strict=True):
            mine[:] = theirs
        self.length = other.length

    def save(self, begin: int, end: int) -> npt.NDArray[np.uint8]:
        """Return positions begin to end - 1: uint8 [U, T, r], r = 4 * K * h.

        U = 2 * N * L, of keys and then of values; of latents N * L.
        """
        layers, lanes, _, heads, width = self._lists[0].shape
        each = np.stack([cached[:, :, begin:end] for cached in self._lists])
        rows = each.reshape(len(self._lists) * layers * lanes, end - begin, heads * width)
        return np.ascontiguousarray(rows).view(np.uint8)

    def restore(self, rows_UTr: npt.NDArray[np.uint8]) -> None:
        """Put saved positions behind the filled part."""
        end = self.length + rows_UTr.shape[1]
        rows = np.ascontiguousarray(rows_UTr).view(np.float32)
        for cached, own in zip(self._lists, np.split(rows, len(self._lists)), strict=True):
            part = cached[:, :, self.length : end]
            part[:] = own.reshape(part.shape)
        self.length = end

    def truncate(self, length: int) -> None:
        """Take back all tokens from ``length`` on."""
        assert 0 <= length <= self.length
        self.length = length
