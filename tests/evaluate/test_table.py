"""The table of docs/evaluation.md is what the results files say."""

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("evaluation")


def report(model: str, tasks: list[dict[str, Any]]) -> dict[str, Any]:
    return {"subject": {"model": model}, "command": "monolane eval", "tasks": tasks}


def figure(metric: str, value: float) -> dict[str, Any]:
    return {
        "metric": metric, "value": value, "low": value - 1, "high": value + 1, "count": 1200,
        "unit": "%", "interval": "Wilson 95 %, items",
    }  # fmt: skip


def test_the_committed_table_has_not_drifted(script: Any) -> None:
    assert script.main(["--page", "--check"]) == 0


def test_a_table_names_what_is_missing_beside_what_was_published(script: Any) -> None:
    gone = {"task": "arc_easy", "figures": [], "notes": ["Not measured: no | network."]}
    code = {"task": "humaneval+", "figures": [figure("pass@1", 12.5)], "notes": []}
    records = [
        record
        for model, tasks in (("a", [code, gone]), ("b", [gone]))
        for record in script.records_of(report(model, tasks))
    ]
    lines = script.render({"x.json": {"records": records}}).splitlines()
    assert (
        "| humaneval+ | pass@1 | 12.50 % (11.50 to 13.50; 1,200) | not measured | 45.10 % |"
        in lines
    )
    assert "| arc_easy | acc_norm | not measured | not measured | 47.90 % |" in lines
    assert "- `arc_easy` of a, b: no \\| network." in lines


def test_of_the_same_figure_the_last_file_counts(script: Any) -> None:
    gone = {"task": "mbpp+", "figures": [], "notes": ["Not measured: no time."]}
    first = report("a", [{"task": "humaneval+", "figures": [figure("pass@1", 5)]}, gone])
    later = report("a", [{"task": "mbpp+", "figures": [figure("pass@1", 7)]}])
    last = report("a", [{"task": "humaneval+", "figures": [figure("pass@1", 6)]}])
    documents = {
        f"{name}.json": {"records": list(script.records_of(found))}
        for name, found in (("x", first), ("y", later), ("z", last))
    }
    table = script.render(documents)
    assert "| humaneval+ | pass@1 | 6.00 % (" in table
    assert "| mbpp+ | pass@1 | 7.00 % (" in table
    assert "no time" not in table
    assert table.startswith("From [x.json](../bench/results/x.json), [y.json](")
