"""What every probe shares while it runs: the device, the budget, the sizes, and where records go.

`attempt` is the only way to a record: a check that fails inside it leaves an error record and no
figure, and so does a watchdog.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench._results import Record, check_record
from bench.gpu.probes._budget import Budget
from bench.gpu.probes._device import Buffer, Device, Launch
from bench.gpu.probes._errors import (
    CheckError,
    DeviceError,
    DeviceHangError,
    NotMeasuredError,
    WaitStarvedError,
)
from bench.gpu.probes._scale import Scale

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


@dataclass
class Context:
    """One probe's surroundings."""

    device: Device
    budget: Budget
    scale: Scale
    emit: Callable[[Record], None]

    def __post_init__(self) -> None:
        self.fault = self.device.zeros(16)

    def attempt(
        self, name: str, measure: Callable[..., Record], *args: Any, **labels: Any
    ) -> Record | None:
        """Emits `measure(*args)` under `name` and `labels`, or why there is no figure."""
        record: Record = {"name": name, "engine": "probe", **labels}
        if self.budget.exhausted:
            record["not_measured"] = f"the probe's {self.budget.seconds:.0f} s were spent"
            self.emit(record)
            return None
        try:
            figures = measure(*args)
            record |= figures
            check_record(record)
        except (CheckError, WaitStarvedError) as error:
            self.emit(record | {"error": f"{type(error).__name__}: {error}"})
            return None
        except DeviceHangError:
            raise
        except DeviceError as error:
            self.emit(record | {"error": f"{type(error).__name__}: {error}"})
            self.device.synchronize()  # raises, and so ends the probe, where the context is lost
            return None
        except NotMeasuredError as error:
            self.emit(record | {"not_measured": str(error)})
            return None
        self.emit(record)
        return record

    def skip(self, name: str, why: str, **labels: Any) -> None:
        """Says that a variant is left out, and why."""
        self.emit({"name": name, "engine": "probe", **labels, "not_measured": why})

    def paced(self, items: Sequence[Any]) -> Iterator[Any]:
        """The items, telling the budget how far we are."""
        for i, item in enumerate(items):
            self.budget.progress = i / len(items)
            yield item

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
        self, work: Callable[[], None], repeats: int, before: Callable[[], None] | None = None
    ) -> list[float]:
        """Milliseconds of `work` in the default stream, by events, after one warm-up."""
        device, out = self.device, []
        start, end = device.event(), device.event()
        for i in range(repeats + 1):
            if before:
                before()
            device.record(start)
            work()
            device.record(end)
            device.synchronize()
            if i:
                out.append(device.elapsed_ms(start, end))
        return out

    def fits(self, kernel: Any, shape: Launch, resident: bool = True) -> None:
        """Raises NotMeasuredError unless a block fits, and (`resident`) all blocks at once."""
        limit = self.device.info.shared_per_block
        if shape.shared > limit:
            raise NotMeasuredError(
                f"needs {shape.shared} bytes of shared memory, a block has {limit}"
            )
        each = self.device.blocks_per_sm(kernel, shape.block, shape.shared)
        if resident and shape.grid > each * self.device.info.sm_count:
            raise NotMeasuredError(
                f"{shape.grid} blocks of {shape.block} threads and {shape.shared} bytes are not "
                f"resident together: {each} per SM on {self.device.info.sm_count} SMs"
            )


class Probe(ABC):
    """One file of the probes folder: a name, a share of the time, and `run`."""

    name: str
    weight: float  # share of the whole budget, relative to the others

    @abstractmethod
    def run(self, ctx: Context) -> None:
        """Measures everything and emits the records."""


def expect(condition: bool, message: str) -> None:
    """Raises CheckError with `message` unless the condition holds."""
    if not condition:
        raise CheckError(message)


def expect_equal(what: str, got: Any, expected: Any) -> None:
    """Raises CheckError unless both are equal."""
    expect(got == expected, f"{what}: expected {expected}, got {got}")


def ns_per_cycle(totals: npt.NDArray[np.uint64]) -> float:
    """From rows of (cycles, ns, ...): over whole kernels, because the ns tick coarsely."""
    cycles, ns = totals[:, 0].astype(np.float64), totals[:, 1].astype(np.float64)
    expect(bool(cycles.min() > 0 and ns.max() > 0), "a block reported no elapsed time")
    return float(np.median(ns) / np.median(cycles))


def free_all(device: Device, buffers: Iterable[Buffer]) -> None:
    """Frees every buffer."""
    for buffer in buffers:
        device.free(buffer)
