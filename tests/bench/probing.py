"""Probes on the emulated device, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from emulated import EmulatedDevice

from bench.gpu._campaign import find_part
from bench.gpu._stage import Budget, CheckError, record_of_error
from bench.gpu.probes._context import ENGINE, Context
from bench.gpu.probes._scale import TINY, Scale
from bench.gpu.probes.run import PROBES
from monolane._results import Record
from monolane.errors import MonolaneError


def context(
    device: EmulatedDevice,
    scale: Scale,
    emit: Callable[[Record], None] = lambda record: None,
    seconds: float = 500,
) -> Context:
    return Context(scale, Path("unused"), Budget(seconds), emit, ENGINE, device=device)


def run_probe(
    name: str, device: EmulatedDevice, scale: Scale = TINY, seconds: float = 500
) -> list[Record]:
    """All records of a probe, and what stopped it."""
    records: list[Record] = []
    try:
        find_part(PROBES, name).function()(context(device, scale, records.append, seconds), name)
    except (CheckError, MonolaneError) as error:
        records.append(record_of_error({"name": f"{name}_part"}, error))
    return records
