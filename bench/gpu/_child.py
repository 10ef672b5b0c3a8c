"""One part in one process: a hang, a fault or a lost GPU costs that part alone.

Records go to a file, a JSON line each, as they are made; so a part that is ended keeps what it had.
What the child prints goes to the log.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bench.gpu._stage import NotMeasuredError, record_of_error
from monolane._results import Record

ROOT = Path(__file__).resolve().parents[2]
DEVICE_LINE = "device_info"
OPTIONAL = ("torch", "transformers")  # packages without which only the peers are left out
_LAST_WORDS = 500  # characters of what a child printed that go into its error


@dataclass
class Outcome:
    """What came of one part."""

    records: list[Record]
    device: dict[str, Any] | None = None


def inner_command(
    script: Path, name: str, seconds: float, records: Path, work: Path, *more: str
) -> list[str]:
    """A script's command line for one part, in a process of its own."""
    return [
        sys.executable, str(script), "--child", name, "--seconds", f"{seconds:.1f}",
        "--records", str(records), "--work", str(work), *more,
    ]  # fmt: skip


def child_main(
    name: str, engine: str, body: Callable[[Callable[[Record], None]], None], records: Path
) -> int:
    """The child process: what `body` emits goes to a file, and what stops it as well."""
    with records.open("a", encoding="utf-8") as file:

        def emit(record: Record) -> None:
            file.write(json.dumps(record) + "\n")
            file.flush()

        label: Record = {"name": f"{name}_part", "engine": engine}
        try:
            body(emit)
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


def run_child(
    name: str,
    engine: str,
    command: Sequence[str],
    seconds: float,
    records: Path,
    log: Path,
    environment: Mapping[str, str],
) -> Outcome:
    """Run a child to its end, or end it by its id when it overstays."""
    records.unlink(missing_ok=True)
    begin = time.monotonic()
    log.touch()
    at = log.stat().st_size
    with log.open("a", encoding="utf-8", errors="replace") as file:
        trouble = _run(command, seconds, file, environment)
        said = said_since(log, at)
        file.write(f"-- {name}: {time.monotonic() - begin:.1f} s\n")
    return make_outcome(name, engine, records, trouble, said)


def said_since(log: Path, at: int) -> str:
    """The end of what has been written to a log since it had ``at`` bytes."""
    with log.open("rb") as file:
        file.seek(at)
        return file.read().decode(errors="replace").strip()[-_LAST_WORDS:]


def make_outcome(name: str, engine: str, records: Path, trouble: str, said: str) -> Outcome:
    """A part's records, and what was wrong with its process if they do not say it."""
    outcome = read_lines(records)
    outcome.records = [record | {"part": name} for record in outcome.records]
    label: Record = {"name": f"{name}_part", "engine": engine, "part": name}
    told = any("error" in record for record in outcome.records)
    if trouble and not (told and trouble == _TOLD):
        outcome.records.append(label | {"error": f"{trouble}: {said}" if said else trouble})
    elif not outcome.records and outcome.device is None:
        outcome.records.append(label | {"error": "made no record at all"})
    return outcome


def environment_of(more: Mapping[str, str]) -> dict[str, str]:
    """The variables of a part's process."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", **more}


_TOLD = "its process ended with status 1"  # of a child that has written down what stopped it


def _run(
    command: Sequence[str], seconds: float, log: IO[str], environment: Mapping[str, str]
) -> str:
    """What was wrong with the process, or nothing."""
    variables = environment_of(environment)
    # A session of its own: what a part leaves behind, a sanitizer's process or a compiler's, would
    # go on with the GPU while the parts behind it are timed.
    child = subprocess.Popen(
        command, env=variables, stdout=log, stderr=log, cwd=ROOT, start_new_session=True
    )
    try:
        status = child.wait(timeout=seconds)
        return f"its process ended with status {status}" if status else ""
    except subprocess.TimeoutExpired:
        return f"did not end within {seconds:.0f} s and was ended"
    finally:  # a signal to the parent too: the child must not outlive it
        with suppress(ProcessLookupError):  # nobody is left
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
