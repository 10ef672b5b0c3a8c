"""A GPU in host memory, which runs the very kernels: compiled by the host's compiler, emulated.

Launches, copies and marks run one after the other in a thread of their own, as in a stream, so that
the host may talk to a kernel while it runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import emulation
import numpy as np
import numpy.typing as npt

from monolane.cuda._device import ALIGNMENT, GpuInfo, Launch, Pinned
from monolane.errors import BackendError

Bytes = npt.NDArray[np.uint8]


def build_kernel(folder: Path, source: str, headers: Mapping[str, str]) -> emulation.Emulated:
    """Compile a file of the kernels folder for the host, unless `folder` has it already."""
    place = emulation.write_headers(folder, headers)
    return emulation.build(emulation.KERNELS / source, folder, includes=[place], optimise="-Og")


class EmulatedGpu:
    """A device of ``sms`` SMs; ``folder`` keeps what was compiled.

    Memory is NaNs where it is new, so that nobody takes it for zeros. ``seed`` is that of the first
    launch's schedule, each launch takes the next.
    """

    def __init__(
        self,
        folder: Path,
        sms: int = 4,
        seed: int = 0,
        mood: str | None = None,
        number: int = 0,
        unreachable: tuple[int, ...] = (),
    ) -> None:
        self.number, self.unreachable = number, unreachable  # numbers of other ones
        self.info = GpuInfo("Emulated", (9, 0), sms, 227 << 10, 1 << 32, 1 << 32)
        self._folder, self._seed, self._mood = folder, seed, mood
        self._memory: dict[int, Bytes] = {}
        self._pinned: dict[int, Bytes] = {}
        self._stream = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None
        self.launches: list[tuple[str, Launch]] = []
        # For faults on purpose: gets a kernel's name and shape, returns what is launched instead.
        self.sabotage: Callable[[str, Launch], Launch] | None = None
        self.fault = ""  # what every kernel ends with, if anything
        self.noise = 0.0, 0  # of the monokernel's roundings: see Emulated.launch_all
        self.closed = False

    # ---- code
    def kernel(self, source: str, entry: str, headers: Mapping[str, str]) -> Any:
        return build_kernel(self._folder, source, headers), entry

    def launch(self, kernel: Any, shape: Launch, params: bytes) -> None:
        library, entry = kernel
        assert shape.shared_bytes <= self.info.shared_bytes
        if shape.cooperative:
            assert shape.blocks <= self.info.sms, "every block needs an SM of its own"
        self.launches.append((entry, shape))
        if self.sabotage:
            shape = self.sabotage(entry, shape)
        self._seed += 1
        seed, fault = self._seed, self.fault
        noise = self.noise if entry == "monokernel" else (0.0, 0)

        def run() -> None:
            error = fault or library.launch(
                entry,
                grid=shape.blocks,
                block=shape.threads,
                shared=shape.shared_bytes,
                params=params,
                seed=seed,
                mood=self._mood,
                host_time=True,
                noise=noise,
            )
            if error:
                raise BackendError(f"{entry}: {error}")

        self._submit(run)

    # ---- memory
    def allocate(self, nbytes: int) -> int:
        assert nbytes > 0
        raw = np.full(nbytes + ALIGNMENT, 0xFF, np.uint8)
        address = -(-raw.ctypes.data // ALIGNMENT) * ALIGNMENT
        begin = address - raw.ctypes.data
        self._memory[address] = raw[begin : begin + nbytes]
        return address

    def free(self, address: int) -> None:
        self._drain()
        del self._memory[address]

    def pin(self, nbytes: int) -> Pinned:
        assert nbytes > 0
        raw = np.zeros(nbytes + 64, np.uint8)
        begin = -raw.ctypes.data % 64
        array = raw[begin : begin + nbytes]
        self._pinned[array.ctypes.data] = array
        return Pinned(array.ctypes.data, array)

    def unpin(self, pinned: Pinned) -> None:
        self._drain()
        del self._pinned[pinned.address]

    def copy_in(self, to: int, source: Pinned, nbytes: int, offset: int = 0) -> None:
        there, here = self._view(to, nbytes), source.array[offset : offset + nbytes]
        assert here.size == nbytes
        self._submit(lambda: np.copyto(there, here))

    def copy_out(self, to: Pinned, source: int, nbytes: int) -> None:
        there, here = self._view(source, nbytes), to.array[:nbytes]
        assert here.size == nbytes
        self._submit(lambda: np.copyto(here, there))

    def clear(self, address: int, nbytes: int) -> None:
        there = self._view(address, nbytes)
        self._submit(lambda: there.fill(0))

    def read(self, address: int, nbytes: int) -> Bytes:
        """What lies in memory, once everything before is over: for tests only."""
        self._drain()
        return self._view(address, nbytes).copy()

    @property
    def allocations(self) -> int:
        """What has been allocated or pinned, and not given back."""
        return len(self._memory) + len(self._pinned)

    def _view(self, address: int, nbytes: int) -> Bytes:
        for base, memory in self._memory.items():
            if base <= address < base + memory.size:
                view = memory[address - base : address - base + nbytes]
                assert view.size == nbytes, "beyond the end of an allocation"
                return view
        raise AssertionError(f"no allocation holds {address:#x}")

    # ---- order
    def _submit(self, work: Callable[[], None]) -> None:
        last = self._last

        def after() -> None:
            if last is not None and last.exception():
                raise BackendError(f"an earlier failure: {last.exception()}")
            work()

        self._last = self._stream.submit(after)

    def _drain(self) -> None:
        if self._last is not None:
            self._last.result(timeout=120)

    def mark(self) -> Any:
        self._submit(lambda: None)
        return self._last

    def passed(self, mark: Any) -> bool:
        if mark.done():
            mark.result()
            return True
        return False

    def wait(self, mark: Any, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.passed(mark):
            if time.monotonic() > deadline:
                raise BackendError("the emulated device did not finish")
            time.sleep(1e-4)

    def reach(self, peer: EmulatedGpu) -> bool:
        return peer.number not in self.unreachable

    def follow(self, mark: Any) -> None:
        self._submit(lambda: mark.result(timeout=120))

    def close(self) -> None:
        self._stream.shutdown()
        self._memory.clear()
        self._pinned.clear()
        self.closed = True
