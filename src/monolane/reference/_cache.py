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
        self._rounded = find_rounding(cache_dtype, config.head_dim)
        lanes = config.num_lanes
        shape = (config.num_layers, lanes, capacity, config.num_kv_heads // lanes, config.head_dim)
        self.capacity = capacity
        self.length = 0
        self._keys = np.zeros(shape, np.float32)  # [N, L, capacity, K, h]
        self._values = np.zeros(shape, np.float32)

    def append(self, layer: int, k_LTKh: Floats, v_LTKh: Floats) -> tuple[Floats, Floats]:
        """Write a pass's keys and values behind the filled part; return all up to and with them.

        ``length`` moves once per pass, by ``advance``: all layers append at the same place.
        """
        end = self.length + k_LTKh.shape[1]
        self._keys[layer, :, self.length : end] = self._rounded(k_LTKh)
        self._values[layer, :, self.length : end] = self._rounded(v_LTKh)
        return self._keys[layer, :, :end], self._values[layer, :, :end]

    @property
    def nbytes(self) -> int:
        """Bytes that it takes once it is full."""
        return self._keys.nbytes + self._values.nbytes

    def advance(self, count: int) -> None:
        """Count the tokens of a finished pass as filled."""
        self.length += count

    def copy_from(self, other: "Cache") -> None:
        """Hold what another cache of the same model holds."""
        self._keys[:], self._values[:] = other._keys, other._values
        self.length = other.length

    def save(self, begin: int, end: int) -> npt.NDArray[np.uint8]:
        """Return positions begin to end - 1: uint8 [U, T, r], U = 2 * N * L, r = 4 * K * h."""
        layers, lanes, _, heads, width = self._keys.shape
        both = np.stack([self._keys[:, :, begin:end], self._values[:, :, begin:end]])
        rows = both.reshape(2 * layers * lanes, end - begin, heads * width)
        return np.ascontiguousarray(rows).view(np.uint8)

    def restore(self, rows_UTr: npt.NDArray[np.uint8]) -> None:
        """Put saved positions behind the filled part."""
        end = self.length + rows_UTr.shape[1]
        rows = np.ascontiguousarray(rows_UTr).view(np.float32)
        for i, cache in enumerate((self._keys, self._values)):
            part = cache[:, :, self.length : end]
            part[:] = np.split(rows, 2)[i].reshape(part.shape)
        self.length = end

    def truncate(self, length: int) -> None:
        """Take back all tokens from ``length`` on."""
        assert 0 <= length <= self.length
        self.length = length
