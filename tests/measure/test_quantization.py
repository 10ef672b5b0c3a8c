"""What quantising costs: which texts the script scores, and that the page shows its results."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from monolane.measure import validate_document
from monolane.sources import find_model

ROOT = Path(__file__).parents[2]


def test_only_texts_that_fit_are_scored_and_named(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("x = [1, 2, 3]\n" * 40)
    (tmp_path / "short.py").write_text("import os\n\n\ndef f(a):\n    return a + 1\n")
    texts = [tmp_path / "long.py", tmp_path / "short.py"]
    command = [sys.executable, ROOT / "bench" / "quantization.py", find_model("demo"), *texts]
    done = subprocess.run(
        [*map(str, command), "--tokens", "60"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    validate_document(document)
    assert document["text"] == ["short.py"]
    size = (tmp_path / "short.py").stat().st_size
    assert {r["bytes"] for r in document["records"]} == {size}
    assert {(r["backend"], r["dtype"]) for r in document["records"]} == {
        ("reference", "float32"), ("reference", "float8"), ("reference", "int8"),
        ("reference", "int4"), ("cpu", "float32"), ("cpu", "bfloat16"), ("cpu", "int8"),
        ("cpu", "int4"),
    }  # fmt: skip


def test_a_file_is_held_against_its_own_numbers(llama_gguf: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Bytes are tokens here. " * 4)
    command = [sys.executable, ROOT / "bench" / "quantization.py", llama_gguf, text]
    done = subprocess.run(
        [*map(str, command), "--context", "64"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    validate_document(document)
    found = {(r["backend"], r["dtype"]): r for r in document["records"]}
    assert {r["context"] for r in document["records"]} == {64}
    assert set(found) == {
        ("reference", "float32"), ("cpu", "bfloat16"), ("cpu", "int8"), ("cpu", "int4"),
        ("cpu", "float32"),  # as the file has it
    }  # fmt: skip
    assert found["cpu", "float32"]["kl_nats"] < 1e-6
    assert found["cpu", "int8"]["kl_nats"] < found["cpu", "int4"]["kl_nats"]
    assert found["cpu", "int8"]["bytes_per_token"] > found["cpu", "int4"]["bytes_per_token"]


def records() -> dict[tuple[str, str], dict[str, Any]]:
    newest = max((ROOT / "bench" / "results").glob("*-quantization.json"))
    document = json.loads(newest.read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "quantization.md").read_text(encoding="utf-8")
    assert f"(../bench/results/{newest.name})" in text
    return {(r["backend"], r["dtype"]): r for r in document["records"] if r["name"] == "accuracy"}


@pytest.mark.parametrize(
    ("weights", "arithmetic", "backend", "dtype"),
    [
        ("bfloat16", "oracle (float32)", "reference", "float32"),
        ("bfloat16", "CPU float32", "cpu", "float32"),
        ("bfloat16", "CPU bfloat16", "cpu", "bfloat16"),
        ("int8", "oracle (float32)", "reference", "int8"),
        ("int8", "CPU int8", "cpu", "int8"),
        ("float8", "oracle (float32)", "reference", "float8"),
        ("int4", "oracle (float32)", "reference", "int4"),
        ("int4", "CPU int4", "cpu", "int4"),
    ],
)
def test_the_page_shows_the_results(
    weights: str, arithmetic: str, backend: str, dtype: str
) -> None:
    text = (ROOT / "docs" / "quantization.md").read_text(encoding="utf-8")
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines()]
    (shown,) = [row[2:] for row in rows if row[:2] == [weights, arithmetic] and len(row) == 9]
    r = records()[backend, dtype]
    more = f"{r['bits_per_byte_more']:+.4f}"
    against_oracle = [
        "0.0000" if more[1:] == "0.0000" else more,
        f"{r['perplexity']:.3f}",
        f"{100 * r['logit_rms_error_share']:.2f} %",
        f"{r['kl_nats']:.5f}",
        f"{100 * r['top1_agreement']:.2f} %",
    ]
    if (backend, dtype) == ("reference", "float32"):
        against_oracle = ["", against_oracle[1], "", "", ""]
    expected = [f"{r['weight_bytes'] / 1e6:.2f}", f"{r['bits_per_byte']:.4f}", *against_oracle]
    assert shown == expected


@pytest.mark.parametrize(
    ("weights", "backend", "dtype"),
    [
        ("float32, the oracle", "reference", "float32"),
        ("bfloat16", "cpu", "bfloat16"),
        ("int8", "cpu", "int8"),
        ("int4", "cpu", "int4"),
        ("Q4_1, the file as it is", "cpu", "q4_1"),
    ],
)
def test_the_page_shows_the_results_on_real_weights(weights: str, backend: str, dtype: str) -> None:
    newest = max((ROOT / "bench" / "results").glob("*-quantization-smollm2.json"))
    document = json.loads(newest.read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "quantization.md").read_text(encoding="utf-8")
    assert f"(../bench/results/{newest.name})" in text
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines()]
    (shown,) = [row[1:] for row in rows if row[:1] == [weights] and len(row) == 8]
    (r,) = [x for x in document["records"] if (x["backend"], x["dtype"]) == (backend, dtype)]
    assert f"{r['tokens']:,} tokens or {r['bytes']:,} bytes" in text
    assert shown == real_row(r)


def real_row(r: dict[str, Any]) -> list[str]:
    """Return what the page says of a record, behind the weights' name."""
    figures = [f"{r['bits_per_byte']:.4f}", f"{r['perplexity']:.3f}"]
    if r["backend"] == "reference":
        return ["", figures[0], "", figures[1], "", "", ""]
    return [
        f"{r['bytes_per_token'] / 1e6:.1f}",
        figures[0],
        f"{r['bits_per_byte_more']:+.4f}",
        figures[1],
        f"{100 * r['logit_rms_error_share']:.2f} %",
        f"{r['kl_nats']:.5f}",
        f"{100 * r['top1_agreement']:.2f} %",
    ]
