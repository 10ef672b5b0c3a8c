"""bench/long_context.py: what a record says of attention, and its row of the table."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from monolane.measure import validate_document

BENCH = Path(__file__).parents[2] / "bench"


def test_a_record_of_each_dtype_and_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    script, table = importlib.import_module("long_context"), importlib.import_module("table")
    monkeypatch.setattr(script, "PROBE_BYTES", 1 << 20)
    words = "--shapes smollm2 --contexts 300 40 --cache-dtypes bfloat16 int4 --rounds 3 --out"
    command = [str(BENCH / "long_context.py"), *words.split(), str(tmp_path / "a.json")]
    monkeypatch.setattr(sys, "argv", command)
    script.main()
    document = json.loads((tmp_path / "a.json").read_text())
    validate_document(document)
    read, *found = document["records"]
    assert (read["name"], read["runs"]) == ("read_bandwidth", 3)
    assert document["device"]["read_bandwidth_gb_s"] == pytest.approx(read["median"], abs=0.1)
    cases = [(r["cache_dtype"], r["context"]) for r in found]
    assert cases == [("bfloat16", 40), ("int4", 40), ("bfloat16", 300), ("int4", 300)]
    for record in found:
        bits = {"bfloat16": 16, "int4": 4.5}[record["cache_dtype"]]
        position = 2 * 2 * 3 * 64 * bits / 8  # keys and values of two layers of three heads of 64
        assert record["cache_bytes_per_token"] == position
        # Tokens are drawn behind the context, so the mean one of eight sees 4 or 5 more.
        more = record["bytes_per_token"] / position - record["context"]
        assert 4 <= more <= 5
        assert record["runs"] == 3
        speed = record["bytes_per_token"] / record["us_per_token"] / 1e3
        assert record["gb_per_s"] == pytest.approx(speed)
        assert 0 < record["mbu_min"] <= record["mbu"] <= record["mbu_max"]
        assert 0 < record["core_gflops_min"] <= record["core_gflops"] <= record["core_gflops_max"]
    assert table.main(["--results", str(tmp_path)]) == 0
    rows = (tmp_path / "README.md").read_text()
    kind = "attention, keys and values in int4 | monolane | heads of smollm2 | bfloat16 | at 300"
    assert rows.count(f"| {kind} | **") == 1
