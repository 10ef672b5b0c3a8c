"""All probes one after the other within one budget, with the results file written after each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import _results
from bench._results import Record
from bench.gpu.probes._budget import slices
from bench.gpu.probes._child import Outcome, stopped
from bench.gpu.probes._context import Probe

Runner = Callable[[Probe, float], Outcome]


@dataclass
class Campaign:
    """`run` returns every record; `out` holds a valid document from the first probe on."""

    probes: Sequence[Probe]
    runner: Runner
    seconds: float
    command: str
    commit: str
    compiler: str
    out: Path | None
    folder: Path
    clock: Callable[[], float] = time.monotonic
    reserve: float = 10.0  # for the last telemetry and the table
    records: list[Record] = field(default_factory=list)
    device: dict[str, Any] = field(default_factory=dict)
    driver: str | None = None

    def run(self) -> None:
        """Every probe, or why it was not run."""
        begin = self.clock()
        for i, probe in enumerate(self.probes):
            left = self.seconds - self.reserve - (self.clock() - begin)
            if left <= 1:
                why = f"the budget of {self.seconds:.0f} s was spent before this probe"
                self.records.append(
                    {"name": f"{probe.name}_probe", "engine": "probe", "not_measured": why}
                )
            else:
                self._one(probe, slices(left, [p.weight for p in self.probes[i:]]))
            self.write()

    def _one(self, probe: Probe, seconds: float) -> None:
        outcome = self.runner(probe, seconds)
        self.device = outcome.device or self.device
        self.records += outcome.records
        if not outcome.records:
            self.records.append(stopped(probe.name, "the probe made no record at all"))

    def document(self) -> _results.Document:
        """The results so far."""
        info = self.device
        best = best_read(self.records)
        device = {
            "name": info.get("name", "unknown"),
            "driver": self.driver or info.get("driver"),
            "cores": info.get("sm_count"),
            "memory_gb": round(info["memory_bytes"] / 1e9, 1) if info else None,
            "read_bandwidth_gb_s": best["gb_per_s"] if best else None,
            "compute": info.get("compute"),
            "l2_bytes": info.get("l2_bytes"),
            "shared_per_block": info.get("shared_per_block"),
        }
        return _results.build(
            device=device,
            command=self.command,
            records=self.records,
            commit=self.commit,
            compiler=self.compiler,
        )

    def path(self) -> Path:
        """Where the document goes: `out`, or a name of the results format in `folder`."""
        return self.out or self.folder / _results.file_name(self.document(), "probes")

    def write(self) -> None:
        """Writes the document; without a device there is nothing worth a default file."""
        if self.out or self.device:
            _results.write(self.path(), self.document())


def best_read(records: Sequence[Record]) -> Record | None:
    """The fastest checked read."""
    reads = [r for r in records if r["name"] == "read_bandwidth" and "gb_per_s" in r]
    return max(reads, key=lambda r: float(r["gb_per_s"]), default=None)
