"""What the executor needs of a GPU, and nothing more.

One stream, in which everything happens in order; the host waits only where it asks to. The real one
is in _driver.py; the tests have another in host memory, which runs the same kernels emulated, so
that everything above this line is proven on machines without a GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Kernel = Any  # what a device makes of a compiled entry point
Mark = Any  # a point in the stream

ALIGNMENT = 256  # bytes: of every allocation


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """A GPU as its driver describes it; sizes in bytes."""

    name: str
    compute: tuple[int, int]  # compute capability
    sms: int
    shared_bytes: int  # that a block may use
    free_bytes: int
    total_bytes: int
    l2_bytes: int = 0  # 0: not asked for
    run_limited: bool = False  # the driver ends kernels that run for seconds: it has a display


@dataclass(frozen=True, slots=True)
class Launch:
    """The shape of a launch.

    cooperative  all blocks must run at the same time
    cluster      blocks of a cluster
    overlap      it may begin before the launch in front of it has ended
    """

    blocks: int
    threads: int
    shared_bytes: int = 0
    cooperative: bool = False
    cluster: int = 1
    overlap: bool = False


@dataclass(frozen=True, slots=True)
class Pinned:
    """Page-locked host memory that the device reads and writes as well."""

    address: int  # as the device sees it
    array: Bytes  # as the host does


class Device(Protocol):
    """A GPU with one stream. Every method raises BackendError if the driver refuses."""

    info: GpuInfo

    def kernel(self, source: str, entry: str, headers: Mapping[str, str]) -> Kernel:
        """Compile a file of the kernels folder with generated headers; return an entry point."""

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory, aligned to ALIGNMENT, its content undefined."""

    def free(self, address: int) -> None:
        """Give memory back."""

    def pin(self, nbytes: int) -> Pinned:
        """Return new pinned memory, zeroed."""

    def unpin(self, pinned: Pinned) -> None:
        """Give pinned memory back; its array must not be used any more."""

    def copy_in(self, to: int, source: Pinned, nbytes: int, offset: int = 0) -> None:
        """Copy from pinned memory, from byte ``offset`` on, in the stream's order."""

    def copy_out(self, to: Pinned, source: int, nbytes: int) -> None:
        """Copy to pinned memory, in the stream's order."""

    def clear(self, address: int, nbytes: int) -> None:
        """Fill with zeros, in the stream's order."""

    def launch(self, kernel: Kernel, shape: Launch, params: bytes) -> None:
        """Launch with one structure as its parameter, in the stream's order."""

    def mark(self) -> Mark:
        """Return a mark at the stream's present end."""

    def passed(self, mark: Mark) -> bool:
        """Return whether everything before a mark is over."""

    def wait(self, mark: Mark, seconds: float) -> None:
        """Wait until a mark is passed; BackendError if it takes longer than ``seconds``."""

    def reach(self, peer: Any) -> bool:
        """Let kernels store in the memory of another device of this kind; False: they cannot."""

    def follow(self, mark: Mark) -> None:
        """Let the stream go on only once a mark of another device is passed."""

    def close(self) -> None:
        """Give back everything that was allocated."""
