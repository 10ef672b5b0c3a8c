"""What a probe needs of a device, and no more: memory, launches, events, graphs, occupancy.

Two implementations: `_cuda.py` (the CUDA driver API through ctypes) and the emulated device of the
tests, which runs the same kernels on the host. Probes know only this class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class DeviceInfo:
    """What the driver says about the device."""

    name: str
    driver: str
    sm_count: int
    compute: tuple[int, int]
    l2_bytes: int
    shared_per_block: int  # bytes, after opting in
    memory_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Buffer:
    """Device memory."""

    address: int
    nbytes: int


@dataclass(frozen=True)
class Pinned:
    """Host memory that the device reaches; `words` is the host's view of it."""

    address: int  # on the device
    words: Any  # ctypes array of c_uint32


@dataclass(frozen=True)
class Launch:
    """The shape of a launch and the attributes that the probes use."""

    grid: int
    block: int
    shared: int = 0
    cluster: int = 1
    cooperative: bool = False
    overlap: bool = (
        False  # programmatic stream serialization: may start before its predecessor ends
    )


Kernel = Any
Stream = Any
Event = Any
Graph = Any


class Device(ABC):
    """One GPU. All calls are checked; a failing one raises DeviceError."""

    info: DeviceInfo

    @abstractmethod
    def kernel(self, source: str, name: str) -> Kernel:
        """The function `name` of the compiled kernel file `source`."""

    @abstractmethod
    def allocate(self, nbytes: int) -> Buffer:
        """Uninitialised device memory."""

    @abstractmethod
    def free(self, buffer: Buffer) -> None:
        """Gives the memory back."""

    @abstractmethod
    def pinned(self, words: int) -> Pinned:
        """Zeroed, mapped host memory of `words` 32-bit words."""

    @abstractmethod
    def upload(self, buffer: Buffer, array: npt.NDArray[Any]) -> None:
        """Copies an array to the start of the buffer."""

    @abstractmethod
    def download(
        self, buffer: Buffer, dtype: npt.DTypeLike, count: int, offset: int = 0
    ) -> npt.NDArray[Any]:
        """Copies `count` elements from byte `offset` of the buffer."""

    @abstractmethod
    def fill(self, buffer: Buffer, word: int, nbytes: int | None = None) -> None:
        """Sets 32-bit words of the buffer's beginning (by default all of it)."""

    @abstractmethod
    def copy(self, to: Buffer, source: Buffer, nbytes: int) -> None:
        """The driver's own device-to-device copy, asynchronous in the default stream."""

    @abstractmethod
    def launch(self, kernel: Kernel, shape: Launch, params: bytes, stream: Stream = None) -> None:
        """Starts a kernel with one parameter struct."""

    @abstractmethod
    def synchronize(self, seconds: float = 20.0) -> None:
        """Waits for all work; raises DeviceHangError after `seconds`."""

    @abstractmethod
    def stream(self) -> Stream:
        """A new stream."""

    @abstractmethod
    def event(self) -> Event:
        """A new timing event."""

    @abstractmethod
    def record(self, event: Event, stream: Stream = None) -> None:
        """Records the event in a stream."""

    @abstractmethod
    def elapsed_ms(self, start: Event, end: Event) -> float:
        """Milliseconds between two events that have completed."""

    @abstractmethod
    def capture(self, stream: Stream, work: Callable[[], None]) -> Graph:
        """The launches that `work` makes in `stream`, as an executable graph."""

    @abstractmethod
    def replay(self, graph: Graph, stream: Stream) -> None:
        """Launches the graph."""

    @abstractmethod
    def max_active_clusters(self, kernel: Kernel, shape: Launch) -> int:
        """How many clusters of `shape` the device holds at once."""

    @abstractmethod
    def blocks_per_sm(self, kernel: Kernel, threads: int, shared: int) -> int:
        """Occupancy of one SM."""

    def zeros(self, nbytes: int) -> Buffer:
        """Cleared memory; a multiple of 4 bytes."""
        buffer = self.allocate(nbytes)
        self.fill(buffer, 0)
        return buffer

    def uploaded(self, array: npt.NDArray[Any]) -> Buffer:
        """Device memory that holds `array`."""
        array = np.ascontiguousarray(array)
        buffer = self.allocate(max(array.nbytes, 16))
        self.upload(buffer, array)
        return buffer
