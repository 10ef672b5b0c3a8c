"""Launches the kernels of kernels/protocols.cu and says what became of them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from emulation import Emulated

Words = npt.NDArray[np.uint32]
# In the kernels' order, and the protocol that has the bug.
BUGS = {
    "none": "",
    "missing publish": "exchange",
    "wrong stamp": "exchange",
    "one buffer": "exchange",
    "half checked": "exchange",
    "missing release": "count",
    "missing collect": "count",
    "released early": "stream",
    "not waited full": "stream",
    "not waited empty": "stream",
    "out of step": "stream",
    "left in flight": "stream",
}
SHAPES: dict[str, dict[str, int]] = {"exchange": {}, "count": {}, "stream": {"threads": 128}}


class ProtocolParams(ctypes.Structure):
    """As the kernels declare it."""

    _fields_ = (
        *((n, ctypes.c_void_p)
          for n in ("words", "values", "counter", "source", "results", "fault")),
        ("watchdog", ctypes.c_uint64),
        *((n, ctypes.c_uint32) for n in ("rounds", "chunks", "chunk_bytes", "slots", "bug",
                                           "pad")),
    )  # fmt: skip


def test_words(count: int, seed: int) -> Words:
    """`test_word` of primitives.cuh."""
    v = np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B1) + np.uint32(seed)
    v = (v ^ (v >> 16)) * np.uint32(0x7FEB352D)
    v = (v ^ (v >> 15)) * np.uint32(0x846CA68B)
    return v ^ (v >> 16)


@dataclass
class Protocol:
    """One protocol's launch: memory, shape, and what must come out."""

    kernel: str
    blocks: int = 6
    threads: int = 96
    rounds: int = 6
    chunks: int = 12
    chunk_bytes: int = 256
    slots: int = 3
    watchdog: int = 1 << 30  # ticks
    bug: str = "none"
    arrays: dict[str, Words] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Clears the memory."""
        all_threads = self.blocks * self.threads
        source = test_words(self.blocks * self.chunks * self.chunk_bytes // 4, 1)
        aligned = np.zeros(source.size + 4, np.uint32)  # copies need multiples of 16 bytes
        start = -aligned.ctypes.data % 16 // 4
        aligned[start : start + source.size] = source
        words = np.zeros(4 * all_threads + 4, np.uint32)
        self.arrays = {
            "words": words[-words.ctypes.data % 16 // 4 :],
            "values": np.zeros(2 * all_threads, np.uint32),
            "counter": np.zeros(1, np.uint32),
            "source": aligned[start:],
            "results": np.zeros(2, np.uint32),
            "fault": np.zeros(4, np.uint32),
        }

    @property
    def params(self) -> bytes:
        """The kernel's parameters."""
        given: dict[str, Any] = {n: a.ctypes.data for n, a in self.arrays.items()}
        for name in ("watchdog", "rounds", "chunks", "chunk_bytes", "slots"):
            given[name] = getattr(self, name)
        given["bug"] = list(BUGS).index(self.bug)
        return bytes(ProtocolParams(**given))

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return self.slots * (self.chunk_bytes + 16)

    @property
    def expected(self) -> int:
        """Words that are checked."""
        if self.kernel == "stream":
            # Out of step, every chunk has one reader instead of all.
            readers = 1 if self.bug == "out of step" else self.threads // 32 - 1
            return self.blocks * readers * self.chunks * self.chunk_bytes // 4
        return self.rounds * self.blocks * self.blocks * self.threads

    def run(self, device: Emulated, seed: int, mood: str | None = None) -> str | None:
        """Launches; None if all is right, else what is wrong."""
        error = device.launch(
            self.kernel, grid=self.blocks, block=self.threads, shared=self.shared,
            params=self.params, seed=seed, mood=mood,
        )  # fmt: skip
        if error:
            return error
        if self.arrays["fault"][0]:
            return f"starved: {self.arrays['fault'].tolist()}"
        wrong, checked = self.arrays["results"].tolist()
        if wrong:
            return f"{wrong} wrong words"
        return None if checked == self.expected else f"{checked} words of {self.expected}"
