"""Keeps a run going on one machine: watches its processes, and starts them again after a crash.

A supervisor of our own around ``torchrun --max-restarts 0``, not torchrun's own restarts. Those
share a fixed number over weeks, wait for nothing between two of them, run whatever the tree holds
by then, and die with torchrun itself. Ours counts only restarts without a new checkpoint between,
waits longer each time, survives a killed torchrun, and notes why each attempt ended. Where several
machines train, each has a supervisor; a mark in the shared run folder tells the others to end their
attempt too, so that they need not wait for a collective to time out.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from monolane._env import LAUNCHER
from monolane.errors import RequestError, TrainingError
from monolane.train._interrupt import deferred_interrupt
from monolane.train._journal import JOURNAL, Follower, last_checkpoint, last_step
from monolane.train._launch.attempt import (
    Attempt,
    Begun,
    Ended,
    adopted_orphans,
    clear_running,
    explain,
    last_words,
    log_of,
    take_left_behind,
)
from monolane.train._launch.snapshot import snapshot_environment
from monolane.train._lock import ATTEMPTS
from monolane.train._terminal import Terminal

_POLL = 0.25  # seconds between looks at the processes
_FAILED = "failed"  # below attempts/: touched by a node whose attempt failed


@dataclass(frozen=True)
class Fleet:
    """The processes of a run: how many on this machine, and this machine among others."""

    processes: int = 1  # on each node; on GPUs one each
    nodes: int = 1
    node: int = 0  # which one this is
    address: str = ""  # host:port of node 0, which the others reach it by

    def __post_init__(self) -> None:
        if self.processes < 1 or self.nodes < 1 or not 0 <= self.node < self.nodes:
            raise RequestError(
                "launch: expected processes and nodes of 1 or more and a node below nodes, got "
                f"{self.processes}, {self.nodes} and {self.node}"
            )
        host, _, port = self.address.rpartition(":")
        if self.nodes > 1 and not (host and port.isdigit()):
            raise RequestError(
                f"launch: expected the host:port of node 0 for {self.nodes} nodes, got "
                f"{self.address!r}; give --address"
            )

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command line that starts monolane's ``arguments`` in each process."""
        if self.processes == self.nodes == 1:
            return [sys.executable, "-m", "monolane", *arguments]
        host, _, port = self.address.rpartition(":")
        # Fixed ranks: after a restart each node has the rank, and so the rows, that it had.
        where = ["--standalone"]
        if self.nodes > 1:
            where = ["--nnodes", f"{self.nodes}", "--node-rank", f"{self.node}"]
            where += ["--master-addr", host, "--master-port", port]
        return [
            *(sys.executable, "-m", "torch.distributed.run", "--max-restarts", "0"),
            *("--nproc-per-node", f"{self.processes}", *where),
            *("-m", "monolane", *arguments),
        ]


@dataclass(frozen=True)
class RestartPolicy:
    """How often and how soon a failed run is started again."""

    restarts: int = 5  # in a row without a new checkpoint; then the launch gives up
    wait: float = 5.0  # seconds before the first restart, doubled for each in a row
    longest_wait: float = 300.0
    grace: float = 60.0  # seconds between the request to stop and SIGKILL
    # Seconds without a new line in the journal, from an attempt's first step on; then it is ended.
    stall: float = 1800.0

    def delay(self, failures: int) -> float:
        """Return the seconds to wait after so many failures in a row."""
        return min(self.wait * 2.0 ** (failures - 1), self.longest_wait)


class Supervisor:
    """Keeps a run going on this node."""

    def __init__(
        self,
        run: Path,
        work: Path,
        command: Callable[[], Sequence[str]],
        fleet: Fleet,
        policy: RestartPolicy,
        terminal: Terminal,
        lock: int,
    ) -> None:
        self._run = run
        self._work = work  # folder that the processes work in
        self._command = command
        self._fleet = fleet
        self._policy = policy
        self._terminal = terminal
        self._lock = lock
        self._follower = Follower(run, terminal)
        self._attempts = run / ATTEMPTS
        self._asked: Callable[[], int] = lambda: 0  # the signal that asked us to stop

    def supervise(self) -> int:
        """Start the run, and again until it is done, stopped or beyond hope."""
        self._follower.poll(show=self._terminal.is_live)  # of earlier launches
        self._note_left_behind()
        failures = 0
        # Slurm warns with SIGUSR1, if told to.
        with adopted_orphans(), deferred_interrupt(signal.SIGHUP, signal.SIGUSR1) as self._asked:
            while True:
                ended = self._attempt()
                if ended.status == 0:
                    return 0
                if self._asked():
                    return 128 + self._asked()
                failures = 1 if ended.last > ended.first else failures + 1
                self._check_hope(ended, failures)
                delay = self._policy.delay(failures)
                self._terminal.say(
                    f"attempt {ended.attempt}: {ended.reason}; step {ended.reached}, kept "
                    f"{ended.last}; restart {failures} of {self._policy.restarts} in {delay:g} s"
                )
                if self._sleep(delay):
                    return 128 + self._asked()

    def _attempt(self) -> Ended:
        """Run one attempt to its end, and note it."""
        node = self._fleet.node
        number = _count(self._attempts / f"node-{node}.jsonl") + 1
        log = log_of(self._attempts, node, number)
        first = last_checkpoint(self._run)
        command = self._command()
        environment = snapshot_environment(self._run, os.environ)
        # How long torchrun lets its workers keep their state.
        environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = f"{max(1, round(self._policy.grace))}"
        environment[LAUNCHER.name] = f"{os.getpid()}"  # they end with us
        self._attempts.mkdir(parents=True, exist_ok=True)
        (self._attempts / f"node-{node}.started").touch()
        started = datetime.now(UTC).isoformat(timespec="seconds")
        Begun(number, first, started, tuple(command)).note(self._attempts, node)
        attempt = Attempt(command, environment, self._work, log, self._lock)
        reason = self._watch(attempt)
        status = attempt.end()
        self._follower.poll()
        why, deliberate = explain(status, attempt.tail())
        ended = Ended(
            attempt=number,
            status=status,
            reason=reason or why,
            first=first,
            last=last_checkpoint(self._run),
            reached=last_step(self._run),
            started=started,
            seconds=round(attempt.seconds, 1),
            command=tuple(command),
            deliberate=deliberate and not reason,
        )
        ended.note(self._attempts, node)
        clear_running(self._attempts, node)
        if status and not reason:
            (self._attempts / _FAILED).touch()
        return ended

    def _note_left_behind(self) -> None:
        """Note the attempt of a launcher that died before it could; its log stays as it is."""
        node = self._fleet.node
        left = take_left_behind(self._attempts, node)
        if left is None or left[0].attempt <= _count(self._attempts / f"node-{node}.jsonl"):
            return
        begun, seconds, output = left
        ended = Ended(
            attempt=begun.attempt,
            status=None,
            reason=f"its launcher died{last_words(output)}",
            first=begun.first,
            last=last_checkpoint(self._run),
            reached=last_step(self._run),
            started=begun.started,
            seconds=seconds,
            command=begun.command,
        )
        ended.note(self._attempts, node)
        self._terminal.say(f"attempt {ended.attempt}: {ended.reason}; see its log")

    def _watch(self, attempt: Attempt) -> str:
        """Wait for the end of an attempt; return the reason where it came from outside."""
        reason, deadline, heard = "", float("inf"), time.monotonic()
        before = self._follower.steps
        while attempt.status() is None and time.monotonic() < deadline:
            # What loads, compiles and reads a checkpoint before the first step writes no lines.
            if self._follower.poll() or self._follower.steps == before:
                heard = time.monotonic()
            if time.monotonic() - heard > self._policy.stall and not reason:
                # All ranks wait for the one that stands still: none can end its step.
                return f"it stood still: no new line in {JOURNAL} for {self._policy.stall:g} s"
            if not reason and (reason := self._outside()):
                attempt.ask_to_stop()
                deadline = time.monotonic() + self._policy.grace + 5  # torchrun kills before us
            time.sleep(_POLL)
        return reason if attempt.status() != 0 else ""

    def _outside(self) -> str:
        """Say why a healthy attempt must end, if it must."""
        if asked := self._asked():
            return f"stopped by {signal.Signals(asked).name}"
        started = self._attempts / f"node-{self._fleet.node}.started"
        failed = self._attempts / _FAILED
        # Both times are the shared disk's: the nodes' clocks may differ.
        if self._fleet.nodes > 1 and failed.exists() and _touched(failed) > _touched(started):
            return "another node failed"
        return ""

    def _check_hope(self, ended: Ended, failures: int) -> None:
        """Raise TrainingError where one more attempt would end like this one."""
        log = log_of(self._attempts, self._fleet.node, ended.attempt)
        if ended.deliberate and ended.reached <= ended.first:
            raise TrainingError(f"{ended.reason} (attempt {ended.attempt}, before its first step)")
        if failures > self._policy.restarts:
            raise TrainingError(
                f"expected a new checkpoint within {failures} attempts, the run is still at step "
                f"{ended.last}; the last one ended as {ended.reason}: see {log}, mend the cause, "
                "and launch again"
            )

    def _sleep(self, seconds: float) -> bool:
        """Wait; return whether we were asked to stop."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._asked():
            time.sleep(min(_POLL, seconds))
        return bool(self._asked())


def _count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0


def _touched(path: Path) -> int:
    return path.stat().st_mtime_ns
