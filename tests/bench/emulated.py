"""A device in host memory that runs the probes' own kernels, on the emulator of tests/cuda.

Each launch runs in a thread of its stream, so kernels in different streams run at the same time and
the host can talk to a running kernel. Times are the host's: only the flow and the checks are real.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import emulation
import numpy as np
import numpy.typing as npt
from emulation import Emulated

from bench.gpu.probes._device import Box, ProbeDevice
from bench.gpu.probes._kernels import KERNELS, SOURCES, Buffer, headers
from monolane.cuda._device import GpuInfo, Launch
from monolane.errors import BackendError


class Kernels:
    """Each kernel file as a shared library in a folder, compiled when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Emulated] = {}

    def __getitem__(self, source: str) -> Emulated:
        if source not in self._made:
            self._folder.mkdir(parents=True, exist_ok=True)
            for name, text in headers().items():
                part = self._folder / f"{name}.{source}.{os.getpid()}"
                part.write_text(text)
                part.rename(self._folder / name)
            self._made[source] = emulation.build(
                KERNELS / source, self._folder, includes=[self._folder], optimise="-O1"
            )
        return self._made[source]

    def build_all(self) -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(self.__getitem__, SOURCES))


class Stream:
    """Launches in order, in one thread."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1)
        self.pending: list[Future[None]] = []
        self.captured: list[Callable[[], None]] | None = None

    def drain(self, seconds: float) -> None:
        for future in self.pending:
            try:
                future.result(timeout=seconds)
            except TimeoutError:
                raise BackendError("the emulated device did not finish") from None
        self.pending = []


class EmulatedDevice(ProbeDevice):
    """Four SMs whose clusters are runs of consecutive blocks."""

    def __init__(
        self, kernels: Kernels, sms: int = 4, seed: int = 0, mood: str | None = None
    ) -> None:
        self.info = GpuInfo("Emulated", (9, 0), sms, 227 * 1024, 1 << 30, 1 << 30, 1 << 20)
        self._kernels, self.seed, self._mood = kernels, seed, mood
        self._memory: dict[int, Any] = {}
        self._pinned: list[Any] = []
        self._default = Stream()
        self._streams = [self._default]
        self.launches: list[tuple[str, Launch]] = []
        self.after_launch: Callable[[str], None] | None = None  # for fault injection

    def kernel(self, source: str, name: str) -> Any:
        return (self._kernels[source], name)

    def allocate(self, nbytes: int) -> Buffer:
        assert nbytes > 0
        memory = np.full(nbytes + 256, 0xCD, np.uint8)  # poisoned, like shared memory
        address = (memory.ctypes.data + 255) // 256 * 256
        self._memory[address] = memory
        return Buffer(address, nbytes)

    def free(self, buffer: Buffer) -> None:
        del self._memory[buffer.address]

    def _bytes(self, buffer: Buffer) -> npt.NDArray[np.uint8]:
        memory = self._memory[buffer.address]
        start = buffer.address - memory.ctypes.data
        view: npt.NDArray[np.uint8] = memory[start : start + buffer.nbytes]
        return view

    def pinned(self, words: int) -> Box:
        view = (ctypes.c_uint32 * words)()
        self._pinned.append(view)
        return Box(ctypes.addressof(view), view)

    def upload(self, buffer: Buffer, array: npt.NDArray[Any]) -> None:
        self._default.drain(60)
        assert array.nbytes <= buffer.nbytes
        self._bytes(buffer)[: array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)

    def download(
        self, buffer: Buffer, dtype: npt.DTypeLike, count: int, offset: int = 0
    ) -> npt.NDArray[Any]:
        self._default.drain(60)
        nbytes = count * np.dtype(dtype).itemsize
        assert offset + nbytes <= buffer.nbytes
        return self._bytes(buffer)[offset : offset + nbytes].copy().view(dtype)

    def fill(self, buffer: Buffer, word: int, nbytes: int | None = None) -> None:
        self._default.drain(60)
        count = buffer.nbytes if nbytes is None else nbytes
        assert count % 4 == 0
        self._bytes(buffer)[:count].view(np.uint32)[:] = word

    def copy(self, to: Buffer, source: Buffer, nbytes: int) -> None:
        self._submit(None, lambda: self._copy_now(to, source, nbytes))

    def _copy_now(self, to: Buffer, source: Buffer, nbytes: int) -> None:
        self._bytes(to)[:nbytes] = self._bytes(source)[:nbytes]

    def launch(self, kernel: Any, shape: Launch, params: bytes, stream: Any = None) -> None:
        kernels, name = kernel
        assert shape.shared_bytes <= self.info.shared_bytes
        assert shape.blocks % shape.cluster == 0
        self.launches.append((name, shape))
        self._submit(stream, lambda: self._run(kernels, name, shape, params))

    def _run(self, kernels: Emulated, name: str, shape: Launch, params: bytes) -> None:
        self.seed += 1
        error = kernels.launch(
            name, grid=shape.blocks, block=shape.threads, shared=shape.shared_bytes,
            cluster=shape.cluster, params=params, sms=self.info.sms, seed=self.seed,
            mood=self._mood, host_time=True,
        )  # fmt: skip
        if error:
            raise BackendError(f"{name}: {error}")
        if self.after_launch:
            self.after_launch(name)

    def _submit(self, stream: Stream | None, work: Callable[[], None]) -> None:
        stream = stream or self._default
        if stream.captured is not None:
            stream.captured.append(work)
        else:
            stream.pending.append(stream.pool.submit(work))

    def synchronize(self, seconds: float = 60.0) -> None:
        for stream in self._streams:
            stream.drain(seconds)

    def stream(self) -> Stream:
        self._streams.append(Stream())
        return self._streams[-1]

    def event(self) -> Any:
        return [0.0]

    def record(self, event: Any, stream: Any = None) -> None:
        self._submit(stream, lambda: event.__setitem__(0, time.perf_counter()))

    def elapsed_ms(self, start: Any, end: Any) -> float:
        return float(end[0] - start[0]) * 1e3

    def capture(self, stream: Stream, work: Callable[[], None]) -> Any:
        stream.captured = []
        work()
        captured, stream.captured = stream.captured, None
        return captured

    def replay(self, graph: Any, stream: Stream) -> None:
        for work in graph:
            self._submit(stream, work)

    def max_active_clusters(self, kernel: Any, shape: Launch) -> int:
        return self.info.sms // shape.cluster

    def blocks_per_sm(self, kernel: Any, shape: Launch) -> int:
        return 1
