"""The everyday questions: fifty of them, answered in two ways, and a run that goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parents[2] / "bench"


def test_there_are_fifty_questions() -> None:
    questions = (BENCH / "everyday.txt").read_text(encoding="utf-8").splitlines()
    assert len(questions) == len(set(questions)) == 50
    assert all(questions)


def test_loops_are_counted_and_answers_are_kept(tmp_path: Path) -> None:
    """The demo model, which writes zeros for ever after the first."""
    questions, kept = tmp_path / "questions.txt", tmp_path / "kept.jsonl"
    questions.write_text("x = 1\nimport os\n")

    def run() -> tuple[int, dict[str, Any]]:
        command = [sys.executable, "bench/everyday.py", "--model", "demo", "--isa", "portable"]
        options = ["--questions", str(questions), "--kept", str(kept), "--max-tokens", "320"]
        done = subprocess.run(
            [*command, *options], cwd=BENCH.parent, capture_output=True, text=True, check=False
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    code, document = run()
    records = {(one["way"], one["draw"]): one for one in document["records"]}
    assert {way for way, _ in records} == {"float32", "portable"}
    assert {draw for _, draw in records} == {"greedy", "sampled"}
    assert "x = 1" in records["float32", "greedy"]["loops"]
    for record in records.values():
        assert record["questions"] == len(record["answers"]) == 2
        exact = set(records["float32", record["draw"]]["loops"])
        assert set(record["loops_of_its_own"]) == set(record["loops"]) - exact
        assert set(record["loops_of_float32_alone"]) == exact - set(record["loops"])
    assert code == any(one["loops_of_its_own"] for one in records.values())
    answers = kept.read_text().splitlines()
    assert len(answers) == 8
    kept.write_text("\n".join(answers[:5]) + "\n")  # killed after five
    again = run()[1]
    assert [one["answers"] for one in again["records"]] == [
        one["answers"] for one in document["records"]
    ]
    assert len(kept.read_text().splitlines()) == 8
