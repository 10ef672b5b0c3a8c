"""Launches: quick ones of a small child, then whole runs that are killed from outside."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from monolane.errors import ConfigError, TrainingError
from monolane.train import (
    Fleet,
    RestartPolicy,
    launch_run,
    load_config,
    read_weights,
    standard_listeners,
    train_run,
)
from monolane.train._journal import read_journal
from monolane.train._launch.snapshot import snapshot_environment, take_snapshot
from monolane.train._lock import locked

from .watching import attempts, wait_for

QUICK = RestartPolicy(restarts=2, wait=0.01, grace=5.0)


def test_a_run_is_run_once(tmp_path: Path) -> None:
    """The lock outlives a launcher whose processes go on."""
    with locked(tmp_path / "node-0.lock") as lock:
        child = subprocess.Popen(["sleep", "60"], pass_fds=(lock,))
    try:
        with (
            pytest.raises(TrainingError, match="expected nobody to run it"),
            locked(tmp_path / "node-0.lock"),
        ):
            pass
    finally:
        child.kill()
        child.wait()
    with locked(tmp_path / "node-0.lock"):
        pass


# Instead of training: notes how it was called and where monolane comes from; dies the first time.
_CHILD = """
import importlib.util, json, os, signal, sys
from pathlib import Path
run = Path(sys.argv[3])
origin = importlib.util.find_spec("monolane").origin
with (run / "calls.jsonl").open("a") as file:
    file.write(json.dumps([sys.argv[1:], origin]) + "\\n")
if not (run / "config.toml").exists():
    (run / "config.toml").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_launch_goes_on_after_a_kill_with_the_code_and_config_it_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(fleet: Fleet, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-c", _CHILD, *arguments]

    monkeypatch.setattr(Fleet, "command", command)
    run = tmp_path / "run"
    assert launch_run("tiny", run, policy=QUICK) == 0
    reasons = [one["reason"] for one in attempts(run)]
    assert reasons == ["the process was killed by SIGKILL", "finished"]
    calls = [json.loads(line) for line in (run / "calls.jsonl").read_text().splitlines()]
    kept = run / "snapshot"
    start = ["train", str(kept / "config.toml"), str(run)]
    assert [arguments for arguments, _ in calls] == [start, [*start, "--resume"]]
    assert {origin for _, origin in calls} == {str(kept / "code" / "monolane" / "__init__.py")}
    with pytest.raises(ConfigError, match="expected the config that the run began with"):
        launch_run("tiny", run, ["seed=1"])


_REFUSING = """
import sys, tomllib
from pathlib import Path
if tomllib.loads(Path(sys.argv[2]).read_text())["seed"] == 1:
    sys.exit("monolane: seed: expected another, got 1")
(Path(sys.argv[3]) / "config.toml").touch()
"""


def test_a_run_that_never_began_may_be_launched_with_another_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(fleet: Fleet, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-c", _REFUSING, *arguments]

    monkeypatch.setattr(Fleet, "command", command)
    run = tmp_path / "run"
    with pytest.raises(TrainingError, match="seed: expected another, got 1 .*before its first"):
        launch_run("tiny", run, ["seed=1"], policy=QUICK)
    assert launch_run("tiny", run, ["seed=2"], policy=QUICK) == 0


# Whole runs.


def losses(run: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in read_journal(run) if "loss" in line}


def ranks(run: Path) -> Iterator[tuple[int, int]]:
    """Yield rank and process id of a run's training processes."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (path / "cmdline").read_bytes()
            variables = (path / "environ").read_bytes().split(b"\0")
            here = str(run).encode() in command and b"train" in command.split(b"\0")
            if here and b"torch.distributed.run" not in command and b"launch" not in command:
                found = [v for v in variables if v.startswith(b"RANK=")]
                yield int(found[0][5:]) if found else 0, int(path.name)


def launch(run: Path, code: Path, *options: str) -> "subprocess.Popen[str]":
    """Start 'monolane launch' from a tree that is not ours, so that a test may break it."""
    command = [sys.executable, "-m", "monolane", "launch", "tiny", str(run), *options]
    environment = snapshot_environment(code, {**os.environ, "OMP_NUM_THREADS": "1"})
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def _settings(corpus: Path) -> list[str]:
    return [f"data.corpus={corpus}", "log.tensorboard=false", "schedule.steps=60"]


_HELD_JOURNAL = """

def _held(journal: Journal, record: StepRecord, note=Journal.step) -> None:
    import sys, time

    note(journal, record)
    if record.step == 50 and "--resume" not in sys.argv:
        time.sleep(3600)

Journal.step = _held
"""


def _hold(tree: Path) -> None:
    """Have a run from this tree wait behind step 50, once, so that none is over before its kill."""
    path = tree / "snapshot" / "code" / "monolane" / "train" / "_journal.py"
    path.chmod(0o644)
    path.write_text(path.read_text() + _HELD_JOURNAL)


def _break(tree: Path) -> None:
    """What an edit in the middle of a run may do."""
    path = tree / "snapshot" / "code" / "monolane" / "train" / "_run.py"
    path.chmod(0o644)
    path.write_text("this is not Python\n")


def _compare(run: Path, whole: Path, reason: str) -> None:
    first, second = attempts(run)
    assert first["reason"] == reason
    assert (second["status"], second["last"]) == (0, 60)
    assert 0 < first["last"] == second["first"] < 60
    assert losses(run) == losses(whole)
    assert list(losses(run)) == list(range(1, 61))
    expected, got = read_weights(whole, 60), read_weights(run, 60)
    assert all(torch.equal(expected[name], got[name]) for name in expected)  # bit for bit


@pytest.mark.slow  # a start of a training process takes seconds, and there are two
def test_a_killed_run_goes_on_by_itself(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"

    def command(fleet: Fleet, arguments: Sequence[str]) -> list[str]:
        resumed = "--resume" in arguments
        start = ["-m", "monolane"] if resumed else [str(Path(__file__).with_name("held.py")), "50"]
        return [sys.executable, *start, *arguments]

    def kill() -> None:
        wait_for(lambda: max(losses(run), default=0) > 20)
        os.kill(dict(ranks(run))[0], signal.SIGKILL)

    monkeypatch.setattr(Fleet, "command", command)
    killer = threading.Thread(target=kill)
    killer.start()
    assert launch_run("tiny", run, _settings(corpus), policy=QUICK) == 0
    killer.join()
    config = load_config("tiny", _settings(corpus))
    train_run(config, whole, standard_listeners(config, whole))
    _compare(run, whole, "the process was killed by SIGKILL")


@pytest.mark.slow  # three starts of two processes: a minute where others compute
def test_a_killed_rank_of_two_ends_in_the_same_loss_whatever_became_of_the_tree(
    corpus: Path, tmp_path: Path
) -> None:
    run, whole, tree = tmp_path / "run", tmp_path / "whole", tmp_path / "tree"
    take_snapshot(tree, "", [])
    _hold(tree)
    options = [part for value in _settings(corpus) for part in ("--set", value)]
    process = launch(run, tree, *options, "--processes", "2")
    wait_for(lambda: process.poll() is not None or max(losses(run), default=0) > 20)
    assert process.poll() is None, process.communicate()[1]
    _break(tree)
    os.kill(dict(ranks(run))[1], signal.SIGKILL)
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    assert launch_run("tiny", whole, _settings(corpus), fleet=Fleet(processes=2)) == 0
    _compare(run, whole, "rank 1 was killed by SIGKILL")
