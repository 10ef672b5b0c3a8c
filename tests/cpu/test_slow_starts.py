"""Ranks that take long to start are waited for, on any machine; those that are lost are named.

What is slow here is slow by the processor time that it takes, so no test depends on the clock. Each
rank imports ``sitecustomize`` before anything of ours, as Python does.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monolane.cpu import CpuExecutor, _rank_messages
from monolane.cpu._idle import Idleness
from monolane.errors import RankError
from monolane.model import Weights

DEMO = Path(__file__).parents[2] / "src" / "monolane" / "demo"
PATIENCE = 1.0  # seconds
# So long that Python starts: far beyond patience, and without a word.
SLOW = f"while time.process_time() < {3 * PATIENCE}: pass"
# Before the rank's first word, or while it loads, when its thread cannot say any: a call that does
# not give up the interpreter.
STARTING = "import os, signal, time\n{}\n"
LOADING = """
import os, signal, sys, time
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "monolane.cpu._native":
            sys.meta_path.remove(self)
            sys.setswitchinterval(1000)
            {}
            sys.setswitchinterval(0.005)
sys.meta_path.insert(0, Finder())
"""


@pytest.fixture
def inject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has each rank run some code on its way; and any silence of a second count."""
    monkeypatch.setattr(_rank_messages, "_STARTING", PATIENCE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    def write(code: str) -> None:
        (tmp_path / "sitecustomize.py").write_text(code)

    return write


def start(ranks: int = 2) -> CpuExecutor:
    weights = Weights.open(DEMO)
    return CpuExecutor(weights, context=64, slots=1, workers=ranks, ranks=ranks, patience=PATIENCE)


@pytest.mark.parametrize("stage", [STARTING, LOADING], ids=["starting", "loading"])
def test_a_rank_that_is_slow_beyond_any_limit_is_waited_for(
    inject: Callable[[str], None], stage: str
) -> None:
    inject(stage.format(SLOW))
    executor = start()
    assert len(executor.processes) == 2
    executor.close()


@pytest.mark.parametrize("stage", [STARTING, LOADING], ids=["starting", "loading"])
@pytest.mark.parametrize(
    ("number", "told"),
    [("SIGKILL", "rank 1 was killed by signal 9"), ("SIGSTOP", "rank 1 made no progress")],
)
def test_a_rank_that_is_lost_meanwhile_is_named(
    inject: Callable[[str], None], stage: str, number: str, told: str
) -> None:
    inject(stage.format(f"os.kill(os.getpid(), signal.{number})"))
    with pytest.raises(RankError, match=f"{told} while it loaded the model") as caught:
        start()
    assert caught.value.rank == 1


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    """One that waits for a word, then works until it is ended."""
    code = "import sys; print(1, flush=True); sys.stdin.readline()\nwhile True: pass"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as found:  # type: ignore[call-overload]
        assert found.stdout.readline() == b"1\n"
        yield found
        found.kill()


def test_what_waits_is_idle_and_what_works_is_not(process: "subprocess.Popen[bytes]") -> None:
    idleness = Idleness(process.pid)
    while not idleness.is_idle():  # it has yet to reach its wait
        pass
    process.stdin.write(b"\n")  # type: ignore[union-attr]
    process.stdin.flush()  # type: ignore[union-attr]
    while idleness.is_idle():
        pass
    assert not any(idleness.is_idle() for _ in range(100))
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    wait_for_idleness(idleness)
    process.kill()
    process.wait()
    wait_for_idleness(idleness)


def wait_for_idleness(idleness: Idleness) -> None:
    """Wait for 100 looks in a row that find nothing done.

    Linux tells of a stop before the thread has left its core, and on a busy machine what it used
    until then may be charged between two looks.
    """
    while not all(idleness.is_idle() for _ in range(100)):
        pass
