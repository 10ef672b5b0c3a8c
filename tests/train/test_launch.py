"""Launches: quick ones of a small child, then a whole run that is killed from outside."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from monolane.errors import ConfigError, TrainingError
from monolane.train import (
    Fleet,
    RestartPolicy,
    launch_run,
    load_config,
    standard_listeners,
    train_run,
)
from monolane.train._lock import locked

from .watching import assert_same_end, attempts, losses, ranks, wait_for

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
run = Path(sys.argv[4])
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
    start = ["train", str(kept / "config.toml"), "--output", str(run)]
    assert [arguments for arguments, _ in calls] == [start, [*start, "--resume"]]
    assert {origin for _, origin in calls} == {str(kept / "code" / "monolane" / "__init__.py")}
    with pytest.raises(ConfigError, match="expected the config that the run began with"):
        launch_run("tiny", run, ["seed=1"])


_REFUSING = """
import sys, tomllib
from pathlib import Path
if tomllib.loads(Path(sys.argv[2]).read_text())["seed"] == 1:
    sys.exit("monolane: seed: expected another, got 1")
(Path(sys.argv[4]) / "config.toml").touch()
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


# A whole run; one of several processes is in test_distributed.py.


@pytest.mark.slow  # a start of a training process takes seconds, and there are two
def test_a_killed_run_goes_on_by_itself(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    settings = [f"data.corpus={corpus}", "log.tensorboard=false", "schedule.steps=60"]

    def command(fleet: Fleet, arguments: Sequence[str]) -> list[str]:
        resumed = "--resume" in arguments
        start = ["-m", "monolane"] if resumed else [str(Path(__file__).with_name("held.py")), "50"]
        return [sys.executable, *start, *arguments]

    def kill() -> None:
        wait_for(lambda: max(losses(run), default=0) > 20)
        os.kill(ranks(run)[0], signal.SIGKILL)

    monkeypatch.setattr(Fleet, "command", command)
    killer = threading.Thread(target=kill)
    killer.start()
    assert launch_run("tiny", run, settings, policy=QUICK) == 0
    killer.join()
    config = load_config("tiny", settings)
    train_run(config, whole, standard_listeners(config, whole))
    first, second = attempts(run)
    assert first["reason"] == "the process was killed by SIGKILL"
    assert (second["status"], second["last"]) == (0, 60)
    assert 0 < first["last"] == second["first"] < 60
    assert_same_end(run, whole, 60)
