import json
from pathlib import Path

import pytest

from monolane.train._journal import Journal


def _steps(folder: Path) -> list[int]:
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def test_one_line_per_step_and_nothing_on_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Journal(tmp_path, steps=3, start=0) as journal:
        for step in range(3):
            journal.record(step, loss=2.5, rate=1e-3, norm=0.7, tokens_per_s=1000.0)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[1] == {
        "step": 1,
        "loss": 2.5,
        "learning_rate": 1e-3,
        "gradient_norm": 0.7,
        "tokens_per_s": 1000.0,
    }
    assert _steps(tmp_path) == [0, 1, 2]
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "step 1/3  loss 2.500" in printed.err


def test_a_resumed_run_replaces_the_steps_that_it_does_again(tmp_path: Path) -> None:
    with Journal(tmp_path, steps=9, start=0) as journal:
        for step in range(5):
            journal.record(step, 3.0, 1e-3, 1.0, 1.0)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')  # killed in mid-write
    with Journal(tmp_path, steps=9, start=3) as journal:
        journal.record(3, 2.0, 1e-3, 1.0, 1.0)
    assert _steps(tmp_path) == [0, 1, 2, 3]
