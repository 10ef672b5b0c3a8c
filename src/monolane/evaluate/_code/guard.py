"""Runs generated code where it can do no harm, and says what it was worth."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from monolane.errors import BackendError

# full: namespaces, limits, another root folder and user; weak: limits, no sockets in Python.
Strength = Literal["full", "weak"]
_OURS = Path(__file__).parent
_LONGEST = 1 << 20  # bytes of a verdict
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sample may use.

    seconds        of wall time, all inputs together; as much processor time in each process
    least_seconds  that EvalPlus gives an input at least, and 4 times what the canonical code takes
    memory         bytes of addresses of one process: EvalPlus's own 4 GB
    disk           bytes of files, all together
    processes      at once, the scorer's two included
    """

    seconds: int = 300
    least_seconds: float = 10.0
    memory: int = 4 << 30
    disk: int = 64 << 20
    processes: int = 32


@dataclass(frozen=True, slots=True)
class Guard:
    """Scores samples in guarded processes; ``score`` is safe to call from several threads."""

    limits: Limits = Limits()
    strength: Strength = "full"

    def score(self, dataset: str, problem: Mapping[str, Any], code: str, sanitize: bool) -> Any:
        """Return {"base", "plus", "code"}, or {"base": "fail", "plus": "fail", "reason"}.

        BackendError: this machine does not permit the guard, or the scorer itself failed.
        """
        with tempfile.TemporaryDirectory(prefix="monolane-eval-") as folder:
            job = {
                "guard": self.strength,
                "root": folder,
                "limits": asdict(self.limits),
                "least_seconds": self.limits.least_seconds,
                "dataset": dataset,
                "problem": problem,
                "code": code,
                "sanitize": sanitize,
            }
            verdict = self._run(json.dumps(job).encode(), folder)
        if "jail" in verdict:
            raise BackendError(
                f"generated code cannot be shut in on this machine ({verdict['jail']}): expected "
                "namespaces, as root or by user namespaces. Permit them (kernel.unprivileged_"
                "userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0; in a container "
                "its seccomp profile), or say --weak-guard in a machine that you can lose"
            )
        if "error" in verdict:
            raise BackendError(f"EvalPlus's scorer failed: {verdict['error']:.300}")
        return verdict

    def _run(self, job: bytes, folder: str) -> dict[str, Any]:
        process = subprocess.Popen(
            [sys.executable, "-I", str(_OURS / "jail.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=_environment(folder),
            start_new_session=True,
        )
        try:
            out, err = process.communicate(job, timeout=self.limits.seconds)
        except subprocess.TimeoutExpired:
            return _failed(f"not over after {self.limits.seconds} s")
        finally:
            _end(process)
        ready, _, verdict = out[:_LONGEST].rpartition(b"\n")
        if not verdict and ready != b"ready":
            code = process.returncode
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
