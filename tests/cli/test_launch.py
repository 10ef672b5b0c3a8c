"""``monolane launch`` hands its options on, and its status is the run's."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from monolane.cli import app

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.mark.parametrize("status", [0, 143])
def test_options_arrive(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    from monolane.train import Fleet, RestartPolicy

    calls: list[tuple[Any, ...]] = []

    def launch_run(*values: Any, fleet: Fleet, policy: RestartPolicy) -> int:
        calls.append((*values, fleet, policy))
        return status

    monkeypatch.setattr("monolane.train.launch_run", launch_run)
    options = ["--set", "seed=1", "--set", "schedule.steps=9", "--processes", "8", "--nodes", "2"]
    options += ["--node", "1", "--address", "first:29500", "--restarts", "3", "--grace", "90"]
    result = CliRunner().invoke(app, ["launch", "tiny", "-o", "run", *options])
    assert result.exit_code == status, result.output
    assert calls == [
        (
            "tiny",
            Path("run"),
            ["seed=1", "schedule.steps=9"],
            Fleet(processes=8, nodes=2, node=1, address="first:29500"),
            RestartPolicy(restarts=3, grace=90.0),
        )
    ]
