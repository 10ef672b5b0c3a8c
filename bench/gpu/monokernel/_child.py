"""One part in one process: a hang, a fault or a lost GPU costs that part alone.

Records go to a file, a JSON line each, as they are made; so a part that is ended keeps what it had.
What the child prints goes to the log.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import IO

from bench._results import Record
from bench.gpu.monokernel._machine import describe
from bench.gpu.monokernel._parts import FIRST, Part, find_part
from bench.gpu.monokernel._scale import FULL, REHEARSAL
from bench.gpu.monokernel._stage import NotMeasuredError, Stage, record_of_error
from bench.gpu.probes._budget import Budget
from bench.gpu.probes._child import DEVICE_LINE, Outcome, read_lines

ROOT = Path(__file__).resolve().parents[3]
RUN = Path(__file__).resolve().parent / "run.py"
OPTIONAL = ("torch", "transformers")  # packages without which only the peers are left out
_SOFT = 0.75  # of a part's time: then it begins nothing new


def child_command(
    name: str, seconds: float, records: Path, work: Path, rehearse: bool
) -> list[str]:
    """This script again, for one part."""
    command = [sys.executable, str(RUN), "--child", name, "--seconds", f"{seconds:.1f}",
               "--records", str(records), "--work", str(work)]  # fmt: skip
    return [*command, "--rehearse"] if rehearse else command


def child_main(name: str, seconds: float, records: Path, work: Path, rehearse: bool) -> int:
    """The body of the child process."""
    scale = REHEARSAL if rehearse else FULL
    with records.open("a", encoding="utf-8") as file:

        def emit(record: Record) -> None:
            file.write(json.dumps(record) + "\n")
            file.flush()

        stage = Stage(scale, work, Budget(_SOFT * seconds), emit)
        label: Record = {"name": f"{name}_part", "engine": "monolane"}
        try:
            if name == FIRST:
                emit({DEVICE_LINE: describe(scale)})
            find_part(name, scale.emulated).function()(stage, name)
        except NotMeasuredError as why:
            emit(label | {"not_measured": str(why)})
        except ModuleNotFoundError as error:
            if error.name not in OPTIONAL:
                raise
            emit(label | {"not_measured": f"{error.name} is not installed here"})
        except Exception as error:  # a bug in a part, or a lost GPU: told, and only its own
            traceback.print_exc()
            emit(record_of_error(label, error))
            return 1
    return 0


def run_part(part: Part, seconds: float, work: Path, rehearse: bool, log: IO[str]) -> Outcome:
    """Run a child to its end, or end it by its id when it overstays."""
    records = work / f"{part.name.replace(':', '-').replace(' ', '-')}.jsonl"
    records.unlink(missing_ok=True)
    command = child_command(part.name, seconds, records, work, rehearse)
    # Compiled kernels are kept in the campaign's own folder: what the compiler says about them is
    # told only when they are made.
    environment = os.environ | {"MONOLANE_CACHE": str(work / "cache"), "PYTHONUNBUFFERED": "1"}
    begin = time.monotonic()
    child = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=ROOT)
    try:
        status = child.wait(timeout=seconds)
        trouble = f"its process ended with status {status}; see the log" if status else ""
    except subprocess.TimeoutExpired:
        trouble = f"did not end within {seconds:.0f} s and was ended"
    finally:  # a signal to the parent too: the child must not outlive it
        if child.poll() is None:
            child.kill()
            child.wait()
    outcome = read_lines(records)
    outcome.records = [record | {"part": part.name} for record in outcome.records]
    label: Record = {"name": f"{part.name}_part", "engine": "monolane", "part": part.name}
    told = any("error" in record for record in outcome.records)
    if trouble and not (told and "status 1;" in trouble):
        outcome.records.append(label | {"error": trouble})
    elif not outcome.records and outcome.device is None:
        outcome.records.append(label | {"error": "made no record at all"})
    log.write(f"-- {part.name}: {time.monotonic() - begin:.1f} s\n")
    log.flush()
    return outcome
