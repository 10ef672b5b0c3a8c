"""One run per folder, processes that end with their launcher, and ranks that stand still."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from monolane._env import LAUNCHER
from monolane.errors import CheckpointError, ConfigError, TrainingError
from monolane.train import RestartPolicy, RunConfig, train_run
from monolane.train._journal import Journal, last_step, read_journal
from monolane.train._launch.attempt import explain
from monolane.train._lock import locked, watch

from .test_supervisor import _TORCHRUN, supervisor
from .watching import attempts, wait_for


def test_train_takes_the_lock_of_launch(
    tiny: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    (run / "attempts").mkdir(parents=True)
    with locked(run / "attempts" / "node-0.lock"):
        with pytest.raises(TrainingError, match=rf"to run it, but .*\(process {os.getpid()}\)"):
            train_run(tiny, run, lambda start: ())
        assert not (run / "config.toml").exists()
        # A process of the launcher that holds it goes on, here to another error.
        monkeypatch.setenv(LAUNCHER.name, f"{os.getpid()}")
        broken = RunConfig(tiny.model, type(tiny.data)(64, 8), tiny.schedule)
        with pytest.raises(ConfigError, match="data.corpus: expected the folder"):
            train_run(broken, run, lambda start: ())


def test_a_config_that_cannot_run_leaves_nothing_behind(tiny: RunConfig, tmp_path: Path) -> None:
    broken = RunConfig(tiny.model, type(tiny.data)(64, 8), tiny.schedule)
    with pytest.raises(ConfigError, match="data.corpus: expected the folder"):
        train_run(broken, tmp_path / "run", lambda start: ())
    assert not (tmp_path / "run").exists()


def test_the_end_of_a_launcher_is_noticed() -> None:
    gone = threading.Event()
    with subprocess.Popen(["sleep", "600"]) as launcher:
        watch(launcher.pid, gone.set)
        assert not gone.is_set()
        launcher.kill()
        assert gone.wait(60)
    late = threading.Event()
    watch(launcher.pid, late.set)  # dead before we looked
    assert late.is_set()


def test_who_stands_still_is_ended_and_started_again(tmp_path: Path) -> None:
    body = """
    step(number)
    if number == 1:
        time.sleep(600)
    """
    policy = RestartPolicy(restarts=1, wait=0.01, stall=3.0)
    assert supervisor(tmp_path, body, policy).supervise() == 0
    first, second = attempts(tmp_path)
    assert first["reason"] == "it stood still: no new line in log.jsonl for 3 s"
    assert (first["status"], second["reason"]) == (-9, "finished")


def test_a_start_does_not_count_as_standing_still(tmp_path: Path) -> None:
    body = """
    note(step=0, event="start", text="", time="0")
    time.sleep(3)
    step(1); keep(1)
    """
    policy = RestartPolicy(restarts=0, wait=0.01, stall=0.5)
    assert supervisor(tmp_path, body, policy).supervise() == 0
    assert [one["reason"] for one in attempts(tmp_path)] == ["finished"]


# A launcher in a process of its own.
_LAUNCHER = """
import os, sys
from pathlib import Path
from monolane.train import Fleet, RestartPolicy
from monolane.train._launch.supervisor import Supervisor
from monolane.train._terminal import Terminal
run = Path(sys.argv[1])
command = [sys.executable, str(run / "child.py"), str(run)]
lock = os.open(run / "lock", os.O_RDWR | os.O_CREAT)
Supervisor(run, run, lambda: command, Fleet(), RestartPolicy(), Terminal(10), lock).supervise()
"""


def test_the_attempt_of_a_launcher_that_died_keeps_its_log_and_gets_a_line(tmp_path: Path) -> None:
    body = """
    step(1); keep(1); step(2)
    print("here I am")
    print("OSError: no way on", flush=True)
    if number == 1:
        (run / "pid").write_text(str(os.getpid()))
        (run / "ready").touch()
        time.sleep(600)
    """
    again = supervisor(tmp_path, body)
    with subprocess.Popen([sys.executable, "-c", _LAUNCHER, str(tmp_path)]) as launcher:
        wait_for((tmp_path / "ready").exists)
        launcher.kill()
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert not (tmp_path / "attempts" / "node-0.jsonl").exists()
    assert again.supervise() == 0
    left, finished = attempts(tmp_path)
    assert left["reason"] == "its launcher died; its processes: OSError: no way on"
    assert (left["attempt"], left["status"], left["last"], left["reached"]) == (1, None, 1, 2)
    assert (finished["attempt"], finished["reason"]) == (2, "finished")
    assert "here I am" in (tmp_path / "attempts" / "node-0-0001.log").read_text()
    assert not list((tmp_path / "attempts").glob("*.running.json"))


def test_the_reason_that_torch_prefixes_is_found() -> None:
    output = "[rank1]: ValueError: lane 3 is not there\n" + _TORCHRUN.format(code=1)
    assert explain(1, output) == (
        "rank 1 exited with status 1: ValueError: lane 3 is not there",
        False,
    )
    # Another rank's error may stand first: it failed because of this one.
    output = "[rank0]: RuntimeError: Connection closed by peer\n" + output
    assert explain(1, output)[0].endswith("ValueError: lane 3 is not there")
    output = "[default0]:[rank0]: monolane.errors.DataError: a part is missing\n"
    assert explain(1, output)[0].endswith("monolane.errors.DataError: a part is missing")


@pytest.mark.parametrize("line", [b"\xff\xfe\n", b"[1]\n", b'{"loss": 1}\n', b"{\n"])
def test_a_damaged_journal_is_told_and_kept(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    content = b'{"step": 1, "loss": 2.0}\n' + line
    path.write_bytes(content)
    for read in (last_step, lambda run: Journal(run, 1), lambda run: list(read_journal(run))):
        with pytest.raises(CheckpointError, match=r"log.jsonl, line 2: expected a line of a run's"):
            read(tmp_path)
    assert path.read_bytes() == content
