"""bench/results/README.md is what the files beside it say."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from monolane.measure import build_document, describe_machine, summary, write_document

ROOT = Path(__file__).parents[2]


def load() -> Any:
    sys.path.insert(0, str(ROOT / "bench"))
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


def test_formats_have_a_table_of_their_own(tmp_path: Path) -> None:
    of_format = {"name": "accuracy", "dtype": "Q4_0", "oracle": "cpu", "file_bytes": 92_000_000}

    def accuracy(engine: str, isa: str, kl: float) -> dict[str, Any]:
        return of_format | {"engine": engine, "isa": isa, "kl_nats": kl, "top1_agreement": 0.97}

    records = [
        accuracy("monolane", "avx512", 0.0015),
        accuracy("monolane", "avx2", 0.0016),
        accuracy("llama.cpp", "", 0.004),
    ]
    head = (
        "| format | MB | KL × 1000, avx512 | KL × 1000, avx2 | KL × 1000, llama.cpp | "
        "KL / llama.cpp's | "
    )
    device = describe_machine() | {"name": "Some CPU"}

    def write(name: str) -> str:
        write_document(tmp_path / name, build_document(device, "x", records, "c0ffee"))
        page = f"before\n{table.MARKS[0]}old\n{table.MARKS[1]}after\n"
        found: str = table.render_page(page, tmp_path)
        assert table.render_page(found, tmp_path) == found
        return found

    page = write("a.json")
    assert head in page
    row = "| Q4_0 | 92 | 1.50 | 1.60 | 4.00 | 0.40 | 97.0% | 97.0% | 97.0% |  |  |  |  |"
    assert f"{row}\n\n[Results](../bench/results/a.json), Some CPU.\n{table.MARKS[1]}after" in page
    assert "old" not in page
    assert row in table.render(tmp_path)
    ratios = {"ratio_to_llama_cpp": 1.5, "ratio_to_llama_cpp_min": 1.25}
    ratios["ratio_to_llama_cpp_max"] = 2.0
    decode = {"name": "decode", "engine": "monolane", "dtype": "Q4_0", "median": 40.0}
    records.append(decode | ratios)
    assert "| 97.0% | 40.0 | 1.50 (1.25 to 2.00) |  |  |" in write("b.json")
