"""bench/cache_accuracy.py: a run goes on where another was stopped, and one may ask for more."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from monolane.measure import validate_document

BENCH = Path(__file__).parents[2] / "bench"


def test_answers_are_kept_and_more_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    script = importlib.import_module("cache_accuracy")
    journal = tmp_path / "work" / "bfloat16" / "ruler.jsonl"

    def run(samples: int) -> list[dict[str, Any]]:
        words = "demo --cache-dtypes bfloat16 --tokens 0 --tasks niah_single_1 --lengths 512"
        command = [*words.split(), "--samples", str(samples), "--work", str(tmp_path / "work")]
        monkeypatch.setattr(sys, "argv", [str(BENCH / "cache_accuracy.py"), *command])
        script.main()
        document = json.loads(capsys.readouterr().out)
        validate_document(document)
        found: list[dict[str, Any]] = document["records"]
        return found

    assert [r["samples"] for r in run(1)] == [1]
    kept = journal.read_bytes()
    assert [r["samples"] for r in run(3)] == [3]
    grown = journal.read_bytes()
    assert grown.startswith(kept)
    assert grown.count(b"\n") == 1 + 3  # its settings, and each answer once
    assert [r["samples"] for r in run(3)] == [3]
    assert journal.read_bytes() == grown
