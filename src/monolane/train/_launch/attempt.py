"""One attempt at a run: its processes, their output, and why it ended.

    <run>/attempts/node-0.jsonl         one line per attempt of this node
    <run>/attempts/node-0-0001.log      what its processes wrote, ours and torchrun's
    <run>/attempts/node-0.running.json  how the attempt began that runs, or whose launcher died

The processes write to the file themselves, not through us: what they say is not lost with a
launcher that dies. They watch it, and then keep their state and stop (``_lock.py``). They are in a
session of their own, so that a Ctrl-C reaches them once, by way of us.
"""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

_TAIL = 64 * 1024  # bytes of the output that are searched for a reason
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>

_ROOT_CAUSE = re.compile(
    r"Root Cause.*?rank\s*: (?P<rank>\d+).*?exitcode\s*: (?P<code>-?\d+)", re.DOTALL
)
# torchrun writes "[default0]:" before a worker's lines, torch's own hook "[rank0]: ".
_WHO = r"^(?:\[(?:[a-z_]*?(?P<rank>\d+))\]: ?)*"
_OURS = re.compile(_WHO + r"monolane: (?P<text>.+)", re.MULTILINE)
_RAISED = re.compile(
    _WHO + r"(?P<text>(?:[\w.]*\.)?\w*(?:Error|Exception|Interrupt)(?:: .+)?)$", re.MULTILINE
)


@dataclass(frozen=True)
class Ended:
    """An attempt that is over; a line of ``node-<n>.jsonl``."""

    attempt: int  # from 1, over all launches of this node
    # Of the process that we started; negative: the signal that killed it. None: nobody was there to
    # be told.
    status: int | None
    reason: str
    first: int  # step of the checkpoint that it began with
    last: int  # step of the last checkpoint then
    reached: int  # steps done, with or without a checkpoint
    started: str  # UTC
    seconds: float
    command: tuple[str, ...]
    # An error that monolane raised on purpose, as against a crash.
    deliberate: bool = False

    def note(self, folder: Path, node: int) -> None:
        """Append it to this node's list."""
        with (folder / f"node-{node}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(self)) + "\n")


@dataclass(frozen=True)
class Begun:
    """How an attempt began; kept while it runs: who finds it later knows that a launcher died."""

    attempt: int
    first: int
    started: str  # UTC
    command: tuple[str, ...]

    def note(self, folder: Path, node: int) -> None:
        """Keep it, in place of that of the attempt before."""
        text = json.dumps(asdict(self)) + "\n"
        _running(folder, node).write_text(text, encoding="utf-8")


def take_left_behind(folder: Path, node: int) -> tuple[Begun, float, str] | None:
    """Return the attempt that a dead launcher left behind, its seconds and its output's end.

    None where there is none. It counts as left behind no longer.
    """
    path = _running(folder, node)
    if not path.exists():
        return None
    try:
        begun = Begun(**json.loads(path.read_text(encoding="utf-8")))
        log = log_of(folder, node, begun.attempt)
        seconds = log.stat().st_mtime - path.stat().st_mtime
        return begun, round(max(0.0, seconds), 1), read_tail(log)
    except (OSError, ValueError, TypeError):  # it died before the processes began
        return None
    finally:
        path.unlink()


def log_of(folder: Path, node: int, attempt: int) -> Path:
    """Return where an attempt's output is."""
    return folder / f"node-{node}-{attempt:04d}.log"


def _running(folder: Path, node: int) -> Path:
    return folder / f"node-{node}.running.json"


def clear_running(folder: Path, node: int) -> None:
    """Forget how the attempt began that has its line."""
    _running(folder, node).unlink(missing_ok=True)


class Attempt:
    """The processes of an attempt, while they run."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        log: Path,
        lock: int,
    ) -> None:
        self._log = log
        self._mark = environment["PYTHONPATH"]  # holds the run's folder: nobody else has it
        self._began = time.monotonic()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(lock,),  # held for as long as either of us lives
            )

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def status(self) -> int | None:
        """Return the exit status, negative for a signal, or None while it runs."""
        return self._process.poll()

    def ask_to_stop(self) -> None:
        """Ask the processes to end their step, keep their state and stop."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)  # torchrun passes it on to its workers

    def end(self) -> int:
        """Kill whatever is left of it, workers without a parent too; return the exit status."""
        if self._process.poll() is None:
            self._process.kill()
        status = self._process.wait()
        while orphans := [pid for pid in _children() if self._is_ours(pid)]:
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)  # its own children are ours now: look again
        return status

    def tail(self) -> str:
        """Return the end of what its processes wrote."""
        return read_tail(self._log)

    def _is_ours(self, pid: int) -> bool:
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return f"PYTHONPATH={self._mark}".encode() in variables


def read_tail(log: Path) -> str:
    """Return the end of an output."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        return file.read().decode("utf-8", "replace")


def explain(status: int, output: str) -> tuple[str, bool]:
    """Return why an attempt ended, in a line, and whether by an error raised on purpose."""
    if status == 0:
        return "finished", False
    who, code, rank = "the process", status, None
    if cause := _ROOT_CAUSE.search(output):
        rank, code = cause["rank"], int(cause["code"])
        who = f"rank {rank}"
    elif status < 0 and "torch.distributed" in output:
        who = "torchrun"
    how = f"was killed by {_signal(-code)}" if code < 0 else f"exited with status {code}"
    ours, raised = list(_OURS.finditer(output)), list(_RAISED.finditer(output))
    if code < 0 or not (ours or raised):
        return f"{who} {how}", False
    # Other ranks fail because of the first: its own error counts, or else what stands first.
    said = ours or raised
    cause_of = next((one for one in said if rank is not None and one["rank"] == rank), said[0])
    return f"{who} {how}: {cause_of['text']}", bool(ours)


def last_words(output: str) -> str:
    """Return the error that an output ends with, as the end of a sentence; "" where it has none."""
    said = list(_OURS.finditer(output)) or list(_RAISED.finditer(output))
    return f"; its processes: {said[0]['text']}" if said else ""


@contextmanager
def adopted_orphans() -> Iterator[None]:
    """Be the parent of descendants whose parent dies (Linux), so that we can end them."""
    _adopt(True)
    try:
        yield
    finally:
        _adopt(False)


def _adopt(wanted: bool) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, int(wanted), 0, 0, 0)


def _children() -> list[int]:
    """Return the process ids of our children (Linux)."""
    texts = (path.read_text() for path in Path("/proc/self/task").glob("*/children"))
    return [int(pid) for text in texts for pid in text.split()]


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
