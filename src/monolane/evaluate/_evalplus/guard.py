"""Runs generated code where it can do no harm, and says what it was worth."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from monolane.errors import BackendError
from monolane.evaluate._evalplus.turns import Turns, Watch

# Both: few calls of the kernel, none of them for network or keys, and limits.
# full: also namespaces, another root folder and another user.
Strength = Literal["full", "weak"]
# Who makes namespaces and root folder: bwrap, or jail.py itself.
Maker = Literal["bubblewrap", "namespaces"]
_PERMIT = (
    "namespaces, as root or by user namespaces. Permit them (kernel.unprivileged_userns_clone=1, "
    "kernel.apparmor_restrict_unprivileged_userns=0; in a container its seccomp profile), or say "
    "--weak-guard in a machine that you can lose"
)
_OURS = Path(__file__).parent
_LONGEST = 1 << 20  # bytes of a verdict
# A sample that failed while it waited for a processor is run again, with limits so much longer.
_PATIENCE = (1, 3, 9)
STALLED = "stalled"
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sample may use.

    seconds        of wall time, all inputs together; as much processor time in each process
    least_seconds  that EvalPlus gives an input at least, and 4 times what the canonical code takes
    part_seconds   that it gives the benchmark's own inputs, and its own, at most; or twice what the
                   canonical code took just before
    memory         bytes of addresses of one process: EvalPlus's own 4 GB
    disk           bytes of files, all together
    processes      at once, the scorer's two included
    """

    seconds: int = 300
    least_seconds: float = 10.0
    part_seconds: float = 60.0
    memory: int = 4 << 30
    disk: int = 64 << 20
    processes: int = 32

    def times(self, factor: int) -> "Limits":
        """Return limits with so many times the time."""
        return replace(
            self,
            seconds=self.seconds * factor,
            least_seconds=self.least_seconds * factor,
            part_seconds=self.part_seconds * factor,
        )


@dataclass(frozen=True, slots=True)
class Guard:
    """Scores samples in guarded processes; ``score`` is safe to call from several threads.

    Without a ``maker`` bubblewrap makes the jail where it works; the limits are the same.
    """

    limits: Limits = Limits()
    strength: Strength = "full"
    maker: Maker | None = None

    def describe(self) -> str:
        """Return what shuts code in here, in words."""
        if self.strength == "weak":
            return "limits and few system calls: no namespaces, as was asked for"
        if self._maker() == "namespaces":
            return "namespaces of our own and few system calls"
        version = subprocess.run([_bwrap(), "--version"], capture_output=True, text=True)
        return f"{version.stdout.strip()} and few system calls"

    def refusal(self) -> str:
        """Return why this machine does not permit the guard, or ""."""
        way = _way(self._maker()) if self.strength == "full" else ("weak",)
        return _refusal(way)

    def _maker(self) -> Maker:
        return self.maker or _found_maker()

    def score(
        self,
        dataset: str,
        problem: Mapping[str, Any],
        code: str,
        sanitize: bool,
        answer: str | None = None,
    ) -> Any:
        """Return {"base", "plus", "code"}, or {"base": "fail", "plus": "fail", "reason"}.

        ``answer``: the whole answer that the code is of; with "whole", the verdict on what EvalPlus
        alone takes from it, where that is other code.
        A failure counts if the sample had its time, or did not wait for it. Else it is run again
        with longer limits, at last {"base": "stalled", "plus": "stalled", "reason"}: no score.
        BackendError: this machine does not permit the guard, or the scorer itself failed.
        """
        turns = Turns()
        for attempt, factor in enumerate(_PATIENCE):
            limits = self.limits.times(factor)
            verdict, turns = self._score_once(limits, dataset, problem, code, sanitize, answer)
            if verdict["base"] == verdict["plus"] == "pass":
                return verdict
            if turns.waited < limits.least_seconds / 2:
                return verdict
            # What loops for ever on a busy machine waits for long, and has had its time all the
            # same. Not at first: a sum over many inputs may hide that one of them had none.
            if attempt and turns.ran >= self.limits.least_seconds:
                return verdict
        reason = (
            f"the sample waited {turns.waited:.0f} s for a processor and ran {turns.ran:.1f} s, in "
            f"the last of {len(_PATIENCE)} tries"
        )
        return {"base": STALLED, "plus": STALLED, "reason": reason}

    def _score_once(
        self,
        limits: Limits,
        dataset: str,
        problem: Mapping[str, Any],
        code: str,
        sanitize: bool,
        answer: str | None,
    ) -> tuple[dict[str, Any], Turns]:
        with tempfile.TemporaryDirectory(prefix="monolane-eval-") as folder:
            job = {
                "guard": self.strength,
                "root": folder,
                "limits": asdict(limits),
                "dataset": dataset,
                "problem": problem,
                "code": code,
                "sanitize": sanitize,
                "answer": answer,
            }
            verdict, turns = self._run(json.dumps(job).encode(), folder, limits)
        if "jail" in verdict:
            needs = (
                _PERMIT
                if self.strength == "full"
                else "seccomp, of Linux on x86-64 or AArch64; run it on such a machine"
            )
            raise BackendError(
                f"generated code cannot be shut in on this machine ({verdict['jail']}): expected "
                f"{needs}"
            )
        if "error" in verdict:
            raise BackendError(f"EvalPlus's scorer failed: {verdict['error']:.300}")
        return verdict, turns

    def _run(self, job: bytes, folder: str, limits: Limits) -> tuple[dict[str, Any], Turns]:
        process = _start(_way(self._maker()) if self.strength == "full" else ("weak",), folder)
        watch = Watch(process.pid, 2 if self.strength == "full" else 1)
        try:
            out, err = process.communicate(job, timeout=limits.seconds)
        except subprocess.TimeoutExpired:
            return _failed(f"not over after {limits.seconds} s"), watch.end()
        finally:
            turns = watch.end()
            _end(process)
        return _read(out, err, process.returncode), turns


@cache
def _found_maker() -> Maker:
    """Try bwrap once. It also has to find each module compiled: in the jail none is kept."""
    if shutil.which("bwrap") is None or _refusal(_way("bubblewrap")):
        return "namespaces"
    with tempfile.TemporaryDirectory(prefix="monolane-eval-") as folder:
        _start(("compile",), folder).communicate()
    return "bubblewrap"


def _bwrap() -> str:
    return shutil.which("bwrap") or "bwrap"


def _way(maker: Maker) -> tuple[str, ...]:
    """Return the first arguments of ``jail.py``."""
    return (maker, _bwrap()) if maker == "bubblewrap" else (maker,)


def _refusal(way: tuple[str, ...]) -> str:
    """Go into a jail and out of it; return why that failed, or ""."""
    with tempfile.TemporaryDirectory(prefix="monolane-eval-") as folder:
        process = _start(way, folder)
        job = {"root": folder, "limits": asdict(Limits())}
        out, err = process.communicate(json.dumps(job).encode())
    verdict = _read(out, err, process.returncode)
    return str(verdict.get("jail") or verdict.get("error") or "")


def _start(way: tuple[str, ...], folder: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-I", str(_OURS / "jail.py"), *way],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=_environment(folder),
        start_new_session=True,
    )


def _read(out: bytes, err: bytes, code: int) -> dict[str, Any]:
    ready, _, verdict = out[:_LONGEST].rpartition(b"\n")
    if not verdict and ready != b"ready":
        return {"error": _last_line(err) or f"it ended with code {code}, before any sample"}
    if not verdict:
        return _failed("the sample ended its scorer, or used up its time")
    found: dict[str, Any] = json.loads(verdict)
    return found


def _environment(folder: str) -> dict[str, str]:
    """Return all that generated code sees of the environment: nothing of the user's."""
    threads = dict.fromkeys(_THREADS, "1")
    return {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": folder, **threads}


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the session of a scorer: its namespace ends with it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _failed(reason: str) -> dict[str, Any]:
    return {"base": "fail", "plus": "fail", "reason": reason}


def _last_line(text: bytes) -> str:
    lines = text.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else ""
