"""What lies in a GPU's memory as long as a model does: weights, tables, cache, exchange words.

Where several share a model, each has the weights and the cache of its own lanes, and all tables and
words; a word lies as far behind the first one on each, so that a peer's is found by one addition.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane.cuda._device import ALIGNMENT, Device
from monolane.cuda._layout import Layout
from monolane.cuda._load import STAGING_BYTES, load
from monolane.cuda._params import PARAMS_DTYPE
from monolane.cuda._requirements import bytes_of, check_bytes
from monolane.cuda._tables import Tables, make_tables
from monolane.model import Weights

_PATIENCE = 60.0  # seconds for the small uploads


class Memory:
    """Addresses of a model and its sequences; one set for the kernels of all widths.

    ``number``: of the device, among those that share the model.
    """

    def __init__(
        self,
        device: Device,
        layouts: tuple[Layout, ...],
        weights: Weights,
        slots: int,
        number: int = 0,
    ) -> None:
        layout = layouts[0]
        assert all(x.tilings == layout.tilings for x in layouts), "kernels share weights"
        assert all(x.layers == layout.layers for x in layouts), "kernels share the cache"
        self._device = device
        needed = bytes_of(layouts, slots)
        check_bytes(needed, device.info)
        self._words = needed.words
        self.cache_bytes, self.weight_bytes = needed.cache, needed.weights
        tables = make_tables(layout, weights)
        self._params = np.zeros((), PARAMS_DTYPE)
        loaded = load(device, layout, weights, number)
        self._params["device"] = number
        self._params["weights"], self._params["row_scales"] = loaded.runs, loaded.row_scales
        for field in fields(Tables):
            table = getattr(tables, field.name)
            if table is not None:
                self._params[field.name] = self._upload(table)
        self._params["cache"] = device.allocate(self.cache_bytes)
        self._first_word = device.allocate(sum(map(_aligned, self._words.values())))
        at = self._first_word
        for name, nbytes in self._words.items():
            self._params[name] = at
            at += _aligned(nbytes)
        self.clear_words()
        self.clear_cache()
        device.wait(device.mark(), _PATIENCE)

    def meet(self, peers: Sequence["Memory"]) -> None:
        """Tell the kernels where their peers' words lie; of all devices, itself among them."""
        distances = [peer._first_word - self._first_word for peer in peers]
        self._params["peers"] = self._upload(np.array(distances, np.int64))

    @property
    def cache(self) -> int:
        """The address of keys and values."""
        return int(self._params["cache"])

    def params(self) -> npt.NDArray[np.void]:
        """Return Params with these addresses in it; the rest is zero."""
        return self._params.copy()

    def clear_words(self) -> None:
        """Forget all stamps, so that passes count from 0 again."""
        self._device.clear(self._first_word, sum(map(_aligned, self._words.values())))

    def clear_cache(self) -> None:
        """Zero keys and values: what pads a head's elements to whole tiles must stay zero."""
        self._device.clear(int(self._params["cache"]), self.cache_bytes)

    def _upload(self, table: npt.NDArray[Any]) -> int:
        """Return the address of a copy of a table."""
        raw = np.ascontiguousarray(table).reshape(-1).view(np.uint8)
        address = self._device.allocate(raw.size)
        pinned = self._device.pin(min(raw.size, STAGING_BYTES))
        for first in range(0, raw.size, STAGING_BYTES):
            piece = raw[first : first + STAGING_BYTES]
            pinned.array[: piece.size] = piece
            self._device.copy_in(address + first, pinned, piece.size)
            self._device.wait(self._device.mark(), _PATIENCE)
        self._device.unpin(pinned)
        return address


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
