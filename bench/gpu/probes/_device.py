"""What probes ask of a device beyond what the executor does: memory as buffers, several streams,
timing events, graphs, occupancy. The device itself is the package's.

The tests have another one in host memory, which runs the same kernels emulated.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.gpu.probes._kernels import Buffer, compile_probe
from monolane.cuda import CudaDevice, GpuInfo
from monolane.cuda._compile import architecture
from monolane.cuda._device import Launch
from monolane.errors import BackendError

Kernel = Any
Stream = Any
Event = Any
Graph = Any
PATIENCE = 20.0  # seconds for the device to finish: watchdogs end what starves after two


@dataclass(frozen=True)
class Box:
    """Host memory that the device reaches; `words` is the host's view of it."""

    address: int  # on the device
    words: Any  # ctypes array of c_uint32: faster to poll than NumPy's


class ProbeDevice:
    """One GPU. All calls are checked; a failing one raises BackendError."""

    info: GpuInfo

    def __init__(self, gpu: CudaDevice) -> None:
        self._gpu, self.info = gpu, gpu.info
        self._streams = [gpu._stream]  # the first is the one for everything that names none
        self._kernels: dict[tuple[str, str], Kernel] = {}

    # ---- code ------------------------------------------------------------------------------------
    def kernel(self, source: str, entry: str) -> Kernel:
        """An entry point of a file of the kernels folder."""
        if (source, entry) not in self._kernels:
            cubin = compile_probe(source, architecture(*self.info.compute)).cubin
            self._kernels[source, entry] = self._gpu.load(cubin, entry)
        return self._kernels[source, entry]

    def launch(self, kernel: Kernel, shape: Launch, params: bytes, stream: Stream = None) -> None:
        """Start a kernel with one parameter struct."""
        self._gpu.launch(kernel, shape, params, stream)

    def max_active_clusters(self, kernel: Kernel, shape: Launch) -> int:
        """How many clusters of `shape` the device holds at once."""
        config = self._gpu.configure(kernel, shape)
        return int(self._gpu._call("cuOccupancyMaxActiveClusters", kernel, config))

    def blocks_per_sm(self, kernel: Kernel, shape: Launch) -> int:
        """Occupancy of one SM."""
        self._gpu.configure(kernel, shape)
        name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        return int(self._gpu._call(name, kernel, shape.threads, shape.shared_bytes))

    # ---- memory ----------------------------------------------------------------------------------
    def allocate(self, nbytes: int) -> Buffer:
        """Uninitialised device memory."""
        return Buffer(self._gpu.allocate(nbytes), nbytes)

    def free(self, buffer: Buffer) -> None:
        """Give the memory back."""
        self._gpu.free(buffer.address)

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

    def pinned(self, words: int) -> Box:
        """Zeroed, mapped host memory of `words` 32-bit words."""
        pinned = self._gpu.pin(4 * words)
        return Box(pinned.address, (ctypes.c_uint32 * words).from_address(pinned.array.ctypes.data))

    def upload(self, buffer: Buffer, array: npt.NDArray[Any]) -> None:
        """Copy an array to the start of the buffer."""
        if array.nbytes > buffer.nbytes:
            raise BackendError(
                f"upload: expected at most {buffer.nbytes} bytes, got {array.nbytes}"
            )
        array = np.ascontiguousarray(array)
        at, stream = array.ctypes.data, self._gpu._stream
        self._gpu._call("cuMemcpyHtoDAsync", buffer.address, at, array.nbytes, stream)
        self.synchronize()  # the array may go once this returns

    def download(
        self, buffer: Buffer, dtype: npt.DTypeLike, count: int, offset: int = 0
    ) -> npt.NDArray[Any]:
        """Copy `count` elements from byte `offset` of the buffer."""
        out = np.empty(count, dtype)
        if offset + out.nbytes > buffer.nbytes:
            raise BackendError(f"download: bytes {offset} + {out.nbytes} of {buffer.nbytes}")
        self.synchronize()  # with a limit: the copy itself would wait for a hung kernel for ever
        at, stream = out.ctypes.data, self._gpu._stream
        self._gpu._call("cuMemcpyDtoHAsync", at, buffer.address + offset, out.nbytes, stream)
        self.synchronize()
        return out

    def fill(self, buffer: Buffer, word: int, nbytes: int | None = None) -> None:
        """Set 32-bit words of the buffer's beginning (by default all of it)."""
        count = (buffer.nbytes if nbytes is None else nbytes) // 4
        self._gpu._call("cuMemsetD32Async", buffer.address, word, count, self._gpu._stream)

    def copy(self, to: Buffer, source: Buffer, nbytes: int) -> None:
        """The driver's own device-to-device copy, asynchronous."""
        stream = self._gpu._stream
        self._gpu._call("cuMemcpyDtoDAsync", to.address, source.address, nbytes, stream)

    # ---- order and time --------------------------------------------------------------------------
    def synchronize(self) -> None:
        """Wait for all work in all streams; BackendError after PATIENCE."""
        marks = [self._gpu.mark(stream) for stream in self._streams]
        for mark in marks:
            self._gpu.wait(mark, PATIENCE)

    def stream(self) -> Stream:
        """A new stream, in no order with the others."""
        kind = self._gpu._driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self._streams.append(self._gpu._call("cuStreamCreate", int(kind)))
        return self._streams[-1]

    def event(self) -> Event:
        """A new timing event."""
        return self._gpu._call("cuEventCreate", 0)

    def record(self, event: Event, stream: Stream = None) -> None:
        """Record the event in a stream."""
        where = self._gpu._stream if stream is None else stream
        self._gpu._call("cuEventRecord", event, where)

    def elapsed_ms(self, start: Event, end: Event) -> float:
        """Milliseconds between two events that have completed."""
        return float(self._gpu._call("cuEventElapsedTime", start, end))

    def capture(self, stream: Stream, work: Callable[[], None]) -> Graph:
        """The launches that `work` makes in `stream`, as an executable graph."""
        modes = self._gpu._driver.CUstreamCaptureMode
        relaxed = modes.CU_STREAM_CAPTURE_MODE_RELAXED  # nothing else runs
        self._gpu._call("cuStreamBeginCapture", stream, relaxed)
        work()
        graph = self._gpu._call("cuStreamEndCapture", stream)
        return self._gpu._call("cuGraphInstantiate", graph, 0)

    def replay(self, graph: Graph, stream: Stream) -> None:
        """Launch the graph."""
        self._gpu._call("cuGraphLaunch", graph, stream)
