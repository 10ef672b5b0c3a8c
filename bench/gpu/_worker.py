"""A process that runs one part after the other and keeps what they load, a model for one.

To load 4.4 GB takes seconds, of every part anew. A part that goes wrong, hangs or dies takes its
process with it: those behind it get a fresh one. Jobs come as JSON lines on the process's standard
input; when one is over, its status goes back through a pipe.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.gpu._child import ROOT, Outcome, environment_of, make_outcome, said_since

_LEAVE_SECONDS = 5.0  # for a process to go by itself
Job = dict[str, Any]


class Worker:
    """The parent's side of one such process."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        self._told, telling = os.pipe()
        with log.open("a", encoding="utf-8") as file:
            self._child = subprocess.Popen(
                [*command, "--tell", str(telling)], env=environment_of(environment),
                stdin=subprocess.PIPE, stdout=file, stderr=file, cwd=ROOT, pass_fds=(telling,),
                start_new_session=True,
            )  # fmt: skip
        os.close(telling)

    def run(self, engine: str, job: Job, seconds: float) -> Outcome:
        """One part; the process is over if it hangs or dies."""
        records, name = Path(job["records"]), job["part"]
        records.unlink(missing_ok=True)
        at, begin = self._log.stat().st_size, time.monotonic()
        trouble = self._run(job, seconds)
        said = said_since(self._log, at)
        with self._log.open("a", encoding="utf-8") as file:
            file.write(f"-- {name}: {time.monotonic() - begin:.1f} s\n")
        return make_outcome(name, engine, records, trouble, said)

    def _run(self, job: Job, seconds: float) -> str:
        """What was wrong with the process, or nothing."""
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):  # it is dead: the pipe says so below
            self._child.stdin.write(json.dumps(job).encode() + b"\n")
            self._child.stdin.flush()
        ready, _, _ = select.select([self._told], [], [], seconds)
        if not ready:
            self._kill()
            return f"did not end within {seconds:.0f} s and was ended"
        if os.read(self._told, 64):
            return ""
        return f"its process ended with status {self._child.wait()}"

    def end(self) -> None:
        """Let the process go, or end it by its id."""
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):
            self._child.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=_LEAVE_SECONDS)
        self._kill()
        os.close(self._told)

    def _kill(self) -> None:
        """Its whole session: a compiler's process that it has begun would go on."""
        with suppress(ProcessLookupError):  # nobody is left
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()


class Workers:
    """One for each group of parts, while it is sound."""

    def __init__(self, start: Callable[[str], Worker]) -> None:
        self._start, self._there = start, dict[str, Worker]()

    def warm(self, group: str) -> None:
        """Start a process before it is needed."""
        if group not in self._there:
            self._there[group] = self._start(group)

    def run(self, group: str, engine: str, job: Job, seconds: float) -> Outcome:
        """One part of a group; whatever goes wrong in it does not reach the next one."""
        self.warm(group)
        outcome = self._there[group].run(engine, job, seconds)
        if any("error" in record for record in outcome.records):
            self._there.pop(group).end()
        return outcome

    def end(self) -> None:
        """Let all go."""
        while self._there:
            self._there.popitem()[1].end()


def serve_jobs(tell: int, run: Callable[[Job], int]) -> int:
    """The process's side: run what comes until nothing more does."""
    for line in sys.stdin:
        status = run(json.loads(line))
        sys.stdout.flush()
        os.write(tell, f"{status}\n".encode())
    return 0
