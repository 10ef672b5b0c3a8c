"""The results format has two validators, and this holds them together.

The package has one; the GPU probes have their own, because they must run where monolane is not
installed. Both accept every committed file and refuse the same damage.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import _results as bench_results
from monolane.measure import ResultsError, validate_document

ROOT = Path(__file__).parents[2]
GOOD: dict[str, Any] = {
    "schema": 1,
    "date": "2026-11-20",
    "commit": "abc",
    "device": dict.fromkeys(bench_results.DEVICE_FIELDS),
    "command": "x",
    "records": [{"name": "decode", "min": 1.0, "median": 2.0, "max": 3.0}],
}


def verdicts(document: dict[str, Any]) -> tuple[bool, bool]:
    """Return whether (the probes', the package's) validator accepts a document."""
    found = []
    for check, error in (
        (bench_results.validate, bench_results.ResultsError),
        (validate_document, ResultsError),
    ):
        try:
            check(document)
            found.append(True)
        except error:
            found.append(False)
    return found[0], found[1]


def test_committed_files_pass_both() -> None:
    files = sorted((ROOT / "bench" / "results").glob("*.json"))
    assert files
    for path in files:
        assert verdicts(json.loads(path.read_text())) == (True, True), path.name


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"date": "yesterday"},
        {"commit": None},
        {"device": {}},
        {"device": None},
        {"records": {}},
        {"records": [{}]},
        {"records": [{"name": "x", "median": float("nan")}]},
        {"records": [{"name": "x", "median": True}]},
        {"records": [{"name": "x", "median": 1.0, "error": "failed"}]},
        {"records": [{"name": "x", "error": "a", "not_measured": "b"}]},
        {"records": [{"name": "x", "error": ""}]},
        {"records": [{"name": "x", "min": 3.0, "median": 2.0, "max": 4.0}]},
    ],
)
def test_both_refuse_the_same_damage(change: dict[str, Any]) -> None:
    assert verdicts(GOOD) == (True, True)
    assert verdicts(GOOD | change) == (False, False)
