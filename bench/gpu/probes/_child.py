"""One probe in one process: a crash, a sticky driver error or a hang costs that probe alone.

Records go to a file, one JSON per line, as they are made, so a killed probe keeps what it had.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench._results import Record
from bench.gpu.probes._budget import Budget
from bench.gpu.probes._context import Context, Probe
from bench.gpu.probes._device import Device
from bench.gpu.probes._errors import ProbeError
from bench.gpu.probes._scale import FULL, Scale

DEVICE_LINE = "device_info"
GRACE_SECONDS = 30.0  # start of the process, context, allocation, the probe's last variant


@dataclasses.dataclass
class Outcome:
    """What came of one probe."""

    records: list[Record]
    device: dict[str, Any] | None = None


def run_probe(
    probe: Probe,
    device: Device,
    seconds: float,
    emit: Callable[[Record], None],
    scale: Scale = FULL,
) -> None:
    """Runs a probe here; whatever stops it becomes a record."""
    ctx = Context(device, Budget(seconds), scale, emit)
    try:
        probe.run(ctx)
    except ProbeError as error:
        emit(stopped(probe.name, f"{type(error).__name__}: {error}"))
    except Exception as error:  # a bug in a probe must not cost its earlier records
        emit(stopped(probe.name, f"bug in the probe: {type(error).__name__}: {error}"))


def stopped(name: str, why: str) -> Record:
    """The record of a probe that did not reach its end."""
    return {"name": f"{name}_probe", "engine": "probe", "error": why}


def child_main(
    probe: Probe, make_device: Callable[[], Device], seconds: float, records: Path
) -> None:
    """The body of the child process."""
    with records.open("a", encoding="utf-8") as file:

        def emit(record: Record) -> None:
            file.write(json.dumps(record) + "\n")
            file.flush()

        try:
            device = make_device()
        except ProbeError as error:
            emit(stopped(probe.name, f"{type(error).__name__}: {error}"))
            return
        emit({DEVICE_LINE: dataclasses.asdict(device.info)})
        run_probe(probe, device, seconds, emit)


def read_lines(path: Path) -> Outcome:
    """The records of a child; an unfinished last line is dropped."""
    outcome = Outcome([])
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            continue
        if DEVICE_LINE in value:
            outcome.device = value[DEVICE_LINE]
        else:
            outcome.records.append(value)
    return outcome


def spawn(name: str, command: list[str], seconds: float, records: Path) -> Outcome:
    """Runs a child and ends it, by its id, when it overstays."""
    records.unlink(missing_ok=True)
    # Eager loading: a lazily loaded kernel may wait for the running ones, which wait for it. And
    # more queues than the default 8, or two of the mailbox probe's streams would share one.
    environment = os.environ | {
        "CUDA_MODULE_LOADING": "EAGER",
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    }
    begin = time.monotonic()
    child = subprocess.Popen(
        command, env=environment, stdout=sys.stderr, stderr=subprocess.PIPE, text=True
    )
    try:
        _, errors = child.communicate(timeout=seconds + GRACE_SECONDS)
        ending = f"exit status {child.returncode}: {errors.strip()[-2000:]}"
        failed = child.returncode != 0
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        spent = time.monotonic() - begin
        ending, failed = f"did not end within {spent:.0f} s and was ended", True
    except BaseException:  # a signal to the parent: the child must not outlive it
        child.kill()
        child.communicate()
        raise
    outcome = read_lines(records)
    if failed:
        outcome.records.append(stopped(name, f"the probe's process {ending}"))
    return outcome
