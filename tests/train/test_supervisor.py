"""The supervisor with small children of its own."""

import os
import signal
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from monolane.errors import TrainingError
from monolane.train import Fleet, RestartPolicy
from monolane.train._launch.attempt import explain
from monolane.train._launch.supervisor import Supervisor
from monolane.train._terminal import Terminal

from .watching import attempts, wait_for

QUICK = RestartPolicy(restarts=2, wait=0.01, grace=60.0)

# What every child may use: the run's folder, how often it has been started, and the journal.
_PRELUDE = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
run = Path(sys.argv[1])
starts = run / "starts"
number = len(starts.read_text()) + 1 if starts.exists() else 1
starts.write_text("x" * number)
def note(**line):
    with (run / "log.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\\n")
def step(number):
    note(step=number, loss=1.0, z_loss=0.0, norm=1.0, learning_rate=1.0, tokens=1,
         tokens_per_s=1.0, seconds=0.1)
def keep(number):
    note(step=number, event="checkpoint", text="", time=str(time.time()))
"""


def supervisor(
    run: Path, body: str, policy: RestartPolicy = QUICK, fleet: Fleet | None = None
) -> Supervisor:
    script = run / "child.py"
    script.write_text(_PRELUDE + textwrap.dedent(body))
    command = [sys.executable, str(script), str(run)]
    (run / "attempts").mkdir(exist_ok=True)
    lock = os.open(run / "lock", os.O_RDWR | os.O_CREAT)
    fleet = fleet or Fleet()
    return Supervisor(run, run, lambda: command, fleet, policy, Terminal(steps=10), lock)


def test_a_crash_is_followed_by_another_attempt(tmp_path: Path) -> None:
    body = """
    step(1); keep(1)
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 2:
        raise RuntimeError("out of luck")
    step(2); keep(2)
    """
    assert supervisor(tmp_path, body).supervise() == 0
    first, second, third = attempts(tmp_path)
    assert (first["status"], first["reason"]) == (-9, "the process was killed by SIGKILL")
    assert second["reason"] == "the process exited with status 1: RuntimeError: out of luck"
    assert (third["status"], third["reason"]) == (0, "finished")
    assert [(one["attempt"], one["first"], one["last"]) for one in (first, second, third)] == [
        (1, 0, 1),
        (2, 1, 1),
        (3, 1, 2),
    ]
    assert "out of luck" in (tmp_path / "attempts" / "node-0-0002.log").read_text()


def test_without_a_new_checkpoint_it_gives_up(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"new checkpoint within 3 attempts.*status 7: see .*3"):
        supervisor(tmp_path, "step(number); sys.exit(7)").supervise()
    assert len(attempts(tmp_path)) == 3


def test_each_new_checkpoint_starts_the_count_anew(tmp_path: Path) -> None:
    body = "step(number); keep(number // 2); sys.exit(number < 7)"
    policy = RestartPolicy(restarts=2, wait=0.01)
    assert supervisor(tmp_path, body, policy).supervise() == 0
    assert len(attempts(tmp_path)) == 7


def test_waits_grow_up_to_a_limit() -> None:
    policy = RestartPolicy(wait=5.0, longest_wait=60.0)
    assert [policy.delay(failures) for failures in range(1, 7)] == [5, 10, 20, 40, 60, 60]


def test_an_error_that_will_come_again_is_not_tried_again(tmp_path: Path) -> None:
    body = 'sys.exit("monolane: data.corpus: expected the folder of a prepared corpus, got none")'
    with pytest.raises(TrainingError, match=r"data.corpus: expected .* before its first step"):
        supervisor(tmp_path, body).supervise()
    assert len(attempts(tmp_path)) == 1


def test_a_request_to_stop_is_passed_on(tmp_path: Path) -> None:
    body = """
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    (run / "ready").touch()
    while not asked:
        time.sleep(0.01)
    keep(5)
    sys.exit(130)
    """

    def ask() -> None:
        wait_for((tmp_path / "ready").exists)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=ask).start()
    assert supervisor(tmp_path, body).supervise() == 128 + signal.SIGTERM
    (ended,) = attempts(tmp_path)
    assert (ended["reason"], ended["status"], ended["last"]) == ("stopped by SIGTERM", 130, 5)


def test_who_does_not_stop_is_killed_after_the_grace(tmp_path: Path) -> None:
    body = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (run / "ready").touch()
    time.sleep(60)
    """

    def ask() -> None:
        wait_for((tmp_path / "ready").exists)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=ask).start()
    policy = RestartPolicy(grace=-4.5)  # 5 s are added for torchrun's own grace
    assert supervisor(tmp_path, body, policy).supervise() == 128 + signal.SIGTERM
    assert attempts(tmp_path)[0]["status"] == -9


def test_workers_of_a_killed_parent_do_not_outlive_the_attempt(tmp_path: Path) -> None:
    body = """
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"],
                              start_new_session=True)
    (run / f"worker-{number}").write_text(str(worker.pid))
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    worker.kill(); worker.wait()
    """
    assert supervisor(tmp_path, body).supervise() == 0
    pid = int((tmp_path / "worker-1").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_node_ends_its_attempt_when_another_one_failed(tmp_path: Path) -> None:
    body = """
    if number == 1:
        time.sleep(0.05)  # another node's failure comes after our start
        (run / "attempts" / "failed").touch()
        time.sleep(60)
    """
    fleet = Fleet(nodes=2, node=1, address="localhost:1")
    assert supervisor(tmp_path, body, fleet=fleet).supervise() == 0
    assert [one["reason"] for one in attempts(tmp_path, 1)] == ["another node failed", "finished"]


# As torchrun 2.13 says it.
_TORCHRUN = """
W1121 04:00:00.000000 1 torch/distributed/elastic/multiprocessing/api.py:1014] Sending process
[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
========================================================
monolane FAILED
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_04:00:00
  host      : node
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 5213)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 5213
"""


def test_reasons() -> None:
    assert explain(0, "") == ("finished", False)
    assert explain(1, "") == ("the process exited with status 1", False)
    assert explain(-11, "x") == ("the process was killed by SIGSEGV", False)
    assert explain(1, _TORCHRUN.format(code=-9)) == ("rank 1 was killed by SIGKILL", False)
    assert explain(-9, "... torch.distributed ...") == ("torchrun was killed by SIGKILL", False)
    ours = "monolane: step 7: the loss is nan\n" + _TORCHRUN.format(code=1)
    expected = "rank 1 exited with status 1: step 7: the loss is nan"
    assert explain(1, ours) == (expected, True)
