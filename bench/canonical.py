"""The canonical solutions of HumanEval+ and MBPP+ through ``monolane eval``: all have to pass.

    python bench/canonical.py WORK [--tasks humaneval+ mbpp+] [--data FOLDER] [--out DIR]

A subject answers each problem with the benchmark's own solution, as a chat's block of code, so
block selection, EvalPlus's sanitizing, the guard and the scorer are those of any run. WORK keeps
the answers: a run that was ended goes on there.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from _document import publish
from _program import run_script

from monolane.evaluate import (
    Answer,
    EvalOptions,
    Guard,
    Question,
    Subject,
    Task,
    evaluate,
    make_tasks,
)
from monolane.measure import Record


class Canonical(Subject):
    """Knows the solution of each problem of some tasks."""

    name, chat, context = "canonical", True, None

    def __init__(self, tasks: list[Task]) -> None:
        self.about: dict[str, Any] = {"model": self.name}
        self._known = {
            item.question.text: item.data["prompt"] + item.data["canonical_solution"]
            for task in tasks
            for item in task.items(self)  # type: ignore[attr-defined]
        }

    def ask(self, question: Question, sample: int = 0) -> Answer:
        """Answer with the solution."""
        return Answer(f"```python\n{self._known[question.text]}\n```", "stop", 1, 1, 0.0)

    def count(self, question: Question) -> int:
        """Return a count that nothing depends on."""
        return 1


def main() -> None:
    """Score and count."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("work", type=Path, help="folder of the journals")
    parser.add_argument("--tasks", nargs="+", default=["humaneval+", "mbpp+"])
    parser.add_argument("--data", type=Path, nargs="+", default=[])
    parser.add_argument("--limit", type=int)
    parser.add_argument("--out", type=Path, help="folder for the results file")
    options = parser.parse_args()
    tasks = make_tasks(
        EvalOptions(tasks=tuple(options.tasks), data=tuple(options.data), limit=options.limit)
    )

    def progress(name: str, done: int, total: int) -> None:
        sys.stderr.write(f"{name}: {done} of {total}\n")

    report = evaluate(Canonical(tasks), tasks, options.work, progress)
    guard = Guard().describe()
    records = [_record(task, options.work) | {"guard": guard} for task in report["tasks"]]
    publish(records, "canonical", options.out, timed=False)


def _record(task: dict[str, Any], work: Path) -> Record:
    lines = (work / f"{task['task']}.jsonl").read_text(encoding="utf-8").splitlines()[1:]
    figures = {figure["metric"]: figure for figure in task["figures"]}
    whole, base = figures["pass@1"], figures["pass@1, base inputs"]
    return {
        "name": "canonical",
        "task": task["task"],
        "problems": task["speed"]["answers"],
        "scored": whole["count"],
        "passed": round(whole["value"] * whole["count"] / 100),
        "passed_base": round(base["value"] * base["count"] / 100),
        "failed": [line["item"] for line in map(json.loads, lines) if line["score"] == 0],
        "scorer": task["settings"]["scorer"],
        "postprocessing": task["settings"]["postprocessing"],
        "data_sha256": task["settings"]["data_sha256"],
        "data_is_the_release": task["settings"]["data_is_the_release"],
    }


if __name__ == "__main__":
    run_script(main)
