"""What every probe shares while it runs: a stage with a device, and launches that are watched.

`attempt` is the only way to a record: a check that fails inside it leaves an error record and no
figure, and so does a watchdog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.gpu._campaign import FIRST
from bench.gpu._device import open_device, test_module
from bench.gpu._stage import Budget, CheckError, NotMeasuredError, Stage, expect
from bench.gpu.probes._device import ProbeDevice
from bench.gpu.probes._kernels import Buffer, ParamStruct
from bench.gpu.probes._scale import FULL, TINY
from monolane._results import Record
from monolane.cuda._device import Launch
from monolane.errors import BackendError

SENTINEL = 0xFFFFFFFF  # in words that are published: nothing is there yet
ENGINE = {"engine": "probe"}
WAITS = {  # enum Wait of primitives.cuh
    1: "ring: a copy that never landed",
    2: "ring: a slot that no reader released",
    3: "sentinel words of a peer",
    4: "the counter of the group",
    5: "remote mbarrier arrivals",
    6: "participants that never finished",
    7: "mailbox words of a peer kernel",
    8: "peer kernels that never started (not co-resident?)",
    9: "the host's flag",
    10: "candidates of a peer block",
}


class WaitStarvedError(CheckError):
    """A spin on the device ran into its watchdog."""


@dataclass
class Context(Stage):
    """One probe's surroundings."""

    device: ProbeDevice = None  # type: ignore[assignment]  # behind fields that have defaults

    def __post_init__(self) -> None:
        self.fault = self.device.zeros(16)

    def after_error(self, error: Exception) -> None:
        """Raises, and so ends the probe, where the device is lost or hangs."""
        if isinstance(error, BackendError):
            self.device.synchronize()

    # ---- launches --------------------------------------------------------------------------------
    def prepare(
        self, source: str, entry: str, shape: Launch, struct: ParamStruct, queue: Any = None,
        **values: int | Buffer,
    ) -> Callable[[], None]:  # fmt: skip
        """A launch in the stream `queue`, to be made once or often; the watchdog's fields too."""
        kernel = self.device.kernel(source, entry)
        own = {"fault": self.fault, "watchdog_cycles": self.scale.watchdog_cycles}
        params = struct.pack(**{k: v for k, v in own.items() if k in struct.names}, **values)
        return lambda: self.device.launch(kernel, shape, params, queue)

    def run(
        self, source: str, entry: str, shape: Launch, struct: ParamStruct, **values: int | Buffer
    ) -> None:
        """Launch once, to the end; WaitStarvedError when a spin ran into its deadline."""
        launch = self.prepare(source, entry, shape, struct, **values)
        self.clear_fault()
        launch()
        self.device.synchronize()
        self.check_fault()

    def clear_fault(self) -> None:
        """Before a launch with a watchdog."""
        self.device.fill(self.fault, 0)

    def check_fault(self) -> None:
        """After it: raises WaitStarvedError when a spin ran into its deadline."""
        wait, block, sm, detail = self.device.download(self.fault, np.uint32, 4).tolist()
        if wait:
            raise WaitStarvedError(
                f"block {block} on SM {sm} waited in vain for {WAITS.get(wait, f'wait {wait}')} "
                f"(detail {detail}); the kernel gave up"
            )

    def time_ms(
        self,
        work: Callable[[], None],
        repeats: int,
        before: Callable[[], None] = lambda: None,
        stream: Any = None,
    ) -> list[float]:
        """Milliseconds of `work` in a stream, by events, after one warm-up."""
        device, out = self.device, []
        start, end = device.event(), device.event()
        for i in range(repeats + 1):
            before()
            device.record(start, stream)
            work()
            device.record(end, stream)
            device.synchronize()
            if i:
                out.append(device.elapsed_ms(start, end))
        return out

    def fits(self, source: str, entry: str, shape: Launch, resident: bool = True) -> None:
        """Raises NotMeasuredError unless a block fits, and (`resident`) all blocks at once."""
        limit, sms = self.device.info.shared_bytes, self.device.info.sms
        needed = shape.shared_bytes
        if needed > limit:
            raise NotMeasuredError(f"needs {needed} bytes of shared memory, a block has {limit}")
        each = self.device.blocks_per_sm(self.device.kernel(source, entry), shape)
        if resident and shape.blocks > each * sms:
            raise NotMeasuredError(
                f"{shape.blocks} blocks of {shape.threads} threads and {needed} bytes are not "
                f"resident together: {each} per SM on {sms} SMs"
            )

    # ---- memory ----------------------------------------------------------------------------------
    @contextmanager
    def buffers(self, **wanted: int | npt.NDArray[Any]) -> Iterator[dict[str, Buffer]]:
        """Device memory by name: so many bytes of zeros, or an array; given back at the end."""
        made: dict[str, Buffer] = {}
        try:
            for name, what in wanted.items():
                device = self.device
                made[name] = device.zeros(what) if isinstance(what, int) else device.uploaded(what)
            yield made
        finally:
            for buffer in made.values():
                self.device.free(buffer)

    def table(
        self, buffer: Buffer, dtype: npt.DTypeLike, rows: int, columns: int
    ) -> npt.NDArray[Any]:
        """A buffer's beginning as rows."""
        return self.device.download(buffer, dtype, rows * columns).reshape(rows, columns)


def sentinels(count: int) -> npt.NDArray[np.uint32]:
    """So many words that nobody has published."""
    return np.full(count, SENTINEL, np.uint32)


def open_probe_device(rehearse: bool, work: Path) -> ProbeDevice:
    """The device with its probe kernels, which a rehearsal compiles for this processor."""
    if not rehearse:
        gpu: Any = open_device(rehearse, work)
        return ProbeDevice(gpu)
    emulated = test_module("emulated")
    device: ProbeDevice = emulated.EmulatedDevice(emulated.Kernels(work / "probes"))
    return device


def make_stage(
    part: str, rehearse: bool, work: Path, budget: Budget, emit: Callable[[Record], None]
) -> Stage:
    """The surroundings of a probe; those of the first part have no device yet."""
    scale = TINY if rehearse else FULL
    if part == FIRST:
        return Stage(scale, work, budget, emit, ENGINE)
    device = open_probe_device(rehearse, work)
    return Context(scale, work, budget, emit, ENGINE, device=device)


def ns_per_cycle(totals: npt.NDArray[np.uint64]) -> float:
    """From rows of (cycles, ns, ...): over whole kernels, because the ns tick coarsely."""
    cycles, ns = totals[:, 0].astype(np.float64), totals[:, 1].astype(np.float64)
    expect(bool(cycles.min() > 0 and ns.max() > 0), "a block reported no elapsed time")
    return float(np.median(ns) / np.median(cycles))
