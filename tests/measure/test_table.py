"""bench/results/README.md is what the files beside it say."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from monolane.measure import build_document, describe_machine, summary, write_document

ROOT = Path(__file__).parents[2]


def load() -> Any:
    spec = importlib.util.spec_from_file_location("bench_table", ROOT / "bench" / "table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


table = load()


def test_the_committed_table_has_not_drifted() -> None:
    assert table.main(["--check"]) == 0


def test_a_table_of_every_kind_of_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decode = {
        "name": "decode",
        "engine": "monolane",
        "model": "laneformer-2b",
        "dtype": "int8",
        "context": 1024,
        "gb_per_s": 44.04,
        "mbu": 0.957,
    }
    records = [
        decode | summary([17.5, 18.0, 18.2], "tokens/s"),
        decode | summary([20.0], "tokens/s") | {"ratio_to_llama_cpp": 1.25},
        {"name": "startup", "dtype": "int8"} | summary([0.5], "s"),
        {"name": "memory", "context": 8, "peak_bytes": 5e9, "overhead_bytes": 2e8},
        {"name": "serve", "not_measured": "no | port"},
        {"name": "accuracy", "context": 8, "worst": 0.25, "exact": True, "share": 0.5},
    ]
    device = describe_machine(46e9) | {"name": "Some CPU"}
    write_document(tmp_path / "a.json", build_document(device, "x --y", records, "c0ffee"))
    assert table.main(["--check", "--results", str(tmp_path)]) == 1
    assert "run: python bench/table.py" in capsys.readouterr().err
    assert table.main(["--results", str(tmp_path)]) == 0
    assert table.main(["--check", "--results", str(tmp_path)]) == 0
    text = (tmp_path / "README.md").read_text()
    assert "reads 46.0 GB/s" in text
    assert "[a.json](a.json) · commit `c0ffee` · `x --y`" in text
    assert (
        "| decode | monolane | laneformer-2b | int8 | at 1,024 | **18** tokens/s (17.5 to 18.2) | "
        "44.0 | 96% |" in text
    )
    assert "**20** tokens/s (20 to 20); **1.25** times llama.cpp |" in text
    assert "| startup |  |" in text
    assert "| peak 5.00 GB; 200 MB beyond weights and keys |" in text
    assert "| worst 0.25, share 0.5 |" in text
    assert "not measured: no \\| port" in text
    assert "No GPU has been at hand" in text
    device["name"] = "NVIDIA Something"
    write_document(tmp_path / "b.json", build_document(device, "x --y", records, "c0ffee"))
    assert table.main(["--results", str(tmp_path)]) == 0
    assert "No GPU has been at hand" not in (tmp_path / "README.md").read_text()


def test_a_memory_that_changed_its_speed_is_told(tmp_path: Path) -> None:
    read = {"name": "read_bandwidth"} | summary([49.0, 52.0, 81.0], "GB/s")
    steady = {"name": "read_bandwidth"} | summary([45.0, 46.0, 47.0], "GB/s")
    device = describe_machine(46e9)
    for name, record in (("a.json", read), ("b.json", steady)):
        write_document(tmp_path / name, build_document(device, name, [record], "c0ffee"))
    assert table.main(["--results", str(tmp_path)]) == 0
    text = (tmp_path / "README.md").read_text()
    assert text.count("The memory gave") == 1
    assert "The memory gave 49 to 81 GB/s while this ran: compare ratios and MBU" in text


def test_a_file_that_breaks_the_format_is_named(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text('{"schema": 3}')
    with pytest.raises(SystemExit, match=r"b\.json: results: expected schema 1, got 3"):
        table.main(["--results", str(tmp_path)])
