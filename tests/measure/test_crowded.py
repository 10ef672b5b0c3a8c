"""bench/crowded.py: what a record says of a crowd, and its row of the table."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from monolane.measure import validate_document

BENCH = Path(__file__).parents[2] / "bench"


def test_a_record_of_each_crowd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    script, table = importlib.import_module("crowded"), importlib.import_module("table")
    words = "--model demo --workers 1 5 --programs 1 0 --tokens 4 --rounds 3 --out"
    command = [str(BENCH / "crowded.py"), *words.split(), str(tmp_path / "a.json")]
    monkeypatch.setattr(sys, "argv", command)
    script.main()
    document = json.loads((tmp_path / "a.json").read_text())
    validate_document(document)
    found = document["records"]
    cases = [(each["programs"], each["workers"]) for each in found]
    assert cases == [(1, 1), (1, 5), (0, 1), (0, 5)]
    for each in found:
        assert each["runs"] == 3
        assert 0 < each["min"] <= each["median"] <= each["max"]
    assert table.main(["--results", str(tmp_path)]) == 0
    rows = (tmp_path / "README.md").read_text()
    for programs, workers in cases:
        name = f"{workers} workers on {found[0]['cores']} cores beside {programs} other programs"
        assert rows.count(f"| {name} | monolane | demo |") == 1
