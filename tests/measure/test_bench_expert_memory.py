"""bench/expert_memory.py: what a record says of each part that is in memory."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from monolane.measure import validate_document

BENCH = Path(__file__).parents[2] / "bench"


def test_a_record_of_each_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path))
    script, table = importlib.import_module("expert_memory"), importlib.import_module("table")
    words = "--shape moe-tiny --type Q8_0 --parts 0 50 100 all --tokens 32 --rounds 2 --out"
    command = [str(BENCH / "expert_memory.py"), *words.split(), str(tmp_path / "a.json")]
    monkeypatch.setattr(sys, "argv", command)
    script.main()
    document = json.loads((tmp_path / "a.json").read_text())
    validate_document(document)
    found = document["records"]
    assert [each["part"] for each in found] == ["0", "50", "100", "all"]
    for each in found:
        assert 0 < each["min"] <= each["median"] <= each["max"]
    assert found[0]["found"] == 0
    assert 0 < found[1]["found"] < 1
    assert found[2]["found"] > 0.9  # of so small experts a place is a little longer: whole pages
    reads = [each["read_mb"] for each in found]
    assert reads[0] > reads[1] > reads[2] >= reads[3] == 0
    assert table.main(["--results", str(tmp_path)]) == 0
    rows = (tmp_path / "README.md").read_text()
    for what in ("0 % of experts", "50 % of experts", "100 % of experts", "all experts"):
        assert rows.count(f"| decode, {what} in memory | monolane | moe-tiny-Q8_0-v3 |") == 1
