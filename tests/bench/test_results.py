"""The results format: what it takes, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import _results

DEVICE = {"name": "NVIDIA H200", "driver": "580", "cores": 132, "memory_gb": 141.0,
          "read_bandwidth_gb_s": None}  # fmt: skip


def document(*records: dict[str, Any]) -> dict[str, Any]:
    return _results.build(device=DEVICE, command="x", records=list(records), commit="abc")


def test_a_document_is_written_whole_and_named_after_the_device(tmp_path: Path) -> None:
    made = document({"name": "decode", "runs": 3, "min": 1.0, "median": 2.0, "max": 3.0})
    path = tmp_path / "new" / _results.file_name(made, "probes")
    _results.write(path, made)
    assert path.name == f"{made['date']}-nvidia-h200-probes.json"
    assert json.loads(path.read_text()) == made
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"name": ""}, "non-empty name"),
        ({"median": 1.0}, "non-empty name"),
        ({"name": "a", "error": "no", "gb_per_s": 1.0}, "must not be written"),
        ({"name": "a", "not_measured": "no", "median": 1.0}, "must not be written"),
        ({"name": "a", "not_measured": "no", "error": "no"}, "keep one"),
        ({"name": "a", "error": " "}, "say why"),
        ({"name": "a", "median": float("nan")}, "finite"),
        ({"name": "a", "median": True}, "expected a number"),
        ({"name": "a", "min": 2, "median": 1, "max": 3}, "min <= median <= max"),
    ],
)
def test_bad_records_are_refused(record: dict[str, Any], message: str) -> None:
    with pytest.raises(_results.ResultsError, match=message):
        document(record)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "expected schema 1, got 2"),
        ({"date": "today"}, "YYYY-MM-DD"),
        ({"commit": None}, "commit"),
        ({"device": {"name": "x"}}, "expected device fields"),
        ({"records": {}}, "expected a list"),
    ],
)
def test_bad_documents_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(_results.ResultsError, match=message):
        _results.validate(document() | change)


def test_the_commit_of_a_folder_without_git_is_unknown(tmp_path: Path) -> None:
    assert _results.current_commit(tmp_path) == "unknown"
