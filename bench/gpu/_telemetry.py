"""Clocks, power and temperature before, during and after, so that a throttled run is recognisable.

Samples come from nvidia-smi in its own process: nothing here touches the device's settings, and a
machine without nvidia-smi only loses this record.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.gpu._stage import summary

FIELDS = {
    "sm_mhz": "clocks.sm",
    "memory_mhz": "clocks.mem",
    "power_w": "power.draw",
    "temperature_c": "temperature.gpu",
    "throttle_reasons": "clocks_event_reasons.active",
}
# Bits of the reasons that mean "slower than the load asked for": power, hardware and thermal.
THROTTLED = 0x4 | 0x8 | 0x20 | 0x40 | 0x80


@dataclass(frozen=True)
class Sample:
    """One line of nvidia-smi; a value it could not give is None."""

    seconds: float
    values: dict[str, float | int | None]


def parse_line(line: str, names: Sequence[str]) -> dict[str, float | int | None]:
    """Values of one csv line without units: "1980, 3201, 412.31, 46, 0x0000000000000004"."""
    out: dict[str, float | int | None] = {}
    for name, text in zip(names, (p.strip() for p in line.split(",")), strict=True):
        try:
            out[name] = int(text, 16) if text.startswith("0x") else float(text)
        except ValueError:
            out[name] = None
    return out


def visible_gpu() -> str:
    """The GPU that a process here has as its first, as nvidia-smi names it: number, UUID or bus id.

    nvidia-smi shows all of a machine, whatever CUDA_VISIBLE_DEVICES says.
    """
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"


def query(fields: dict[str, str]) -> dict[str, float | int | None] | None:
    """One reading, or None where nvidia-smi does not answer."""
    command = ["nvidia-smi", "-i", visible_gpu(), f"--query-gpu={','.join(fields.values())}"]
    try:
        done = subprocess.run(
            [*command, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
        return parse_line(done.stdout.strip().splitlines()[0], list(fields))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def driver_version() -> str | None:
    """The driver's version as nvidia-smi prints it."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-i", visible_gpu(), "--query-gpu=driver_version",
             "--format=csv,noheader"],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


@dataclass
class Telemetry:
    """Samples every `interval` seconds between `start` and `stop`."""

    interval: float = 2.0  # seldom: a reading takes locks in the driver
    samples: list[Sample] = field(default_factory=list)

    def start(self) -> None:
        """Takes the first sample and goes on in a thread."""
        self._begin, self._stop = time.monotonic(), threading.Event()
        self._take()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Takes the last sample."""
        self._stop.set()
        self._thread.join(timeout=15)
        self._take()

    def _take(self) -> None:
        if values := query(FIELDS):
            self.samples.append(Sample(time.monotonic() - self._begin, values))

    def _loop(self) -> None:
        while not self._stop.wait(self.interval):
            self._take()

    def record(self) -> dict[str, Any]:
        """The "clocks" record: before, during, after, and whether the device was throttled."""
        record: dict[str, Any] = {"name": "clocks", "engine": "nvidia-smi"}
        if len(self.samples) < 2:
            return record | {"not_measured": "nvidia-smi gave fewer than two samples"}
        reasons = 0
        for sample in self.samples:
            reasons |= int(sample.values.get("throttle_reasons") or 0)
        record |= {
            "before": self.samples[0].values,
            "after": self.samples[-1].values,
            "throttle_reasons_seen": hex(reasons),
            "throttled": bool(reasons & THROTTLED),
            "samples": [{"seconds": round(s.seconds, 2), **s.values} for s in self.samples],
        }
        for name in FIELDS:
            seen = [v for s in self.samples if (v := s.values.get(name)) is not None]
            if seen and name != "throttle_reasons":
                record[name] = summary(seen)
        return record
