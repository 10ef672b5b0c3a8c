"""A .gguf file on the command line: what runs a model takes it, the rest say what they want."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from monolane.cpu import CpuExecutor
from monolane.model import Weights

PROGRAM = [sys.executable, "-W", "error", "-c", "from monolane.cli import main; main()"]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_generate_and_plan_take_a_file(llama_gguf: Path) -> None:
    made = run("generate", "a", "-m", llama_gguf, "-n", 8, "--ignore-eos", "--json")
    assert made.returncode == 0, made.stderr
    assert len(json.loads(made.stdout)["token_ids"]) == 8
    plan = run("plan", "show", "--model", llama_gguf, "--json")
    assert plan.returncode == 0, plan.stderr


def test_a_plan_counts_the_bytes_of_each_matrix_as_it_is_multiplied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    from _gguf import random_gguf

    path = random_gguf(tmp_path, "llama-tiny", "Q4_K_M")
    asked = ("plan", "show", "--model", path, "--context", 8, "--device", "cpu:1")
    told = run(*asked)
    assert told.returncode == 0, told.stderr
    assert told.stdout.split(" · ")[1] == "q4_k, q6_k"
    executor = CpuExecutor(Weights.open(path), context=8, slots=1, workers=1)
    counted = json.loads(run(*asked, "--json").stdout)["total"]["bytes"]
    assert counted == executor.bytes_per_token(8)


def test_bench_takes_a_file(llama_gguf: Path) -> None:
    common = ("--runs", 1, "--tokens", 2, "--startup", 0, "--buffer", 1, "--prefill", 8, "--json")
    result = run("bench", llama_gguf, "--context", 8, *common)
    assert result.returncode == 0, result.stderr
    records = json.loads(result.stdout)["records"]
    assert {"decode", "prefill"} <= {record["name"] for record in records}


def test_commands_that_write_a_model_ask_for_a_folder(llama_gguf: Path, tmp_path: Path) -> None:
    result = run("quantize", llama_gguf, tmp_path / "out", "--dtype", "int8")
    assert result.returncode == 1
    assert "expected a model folder with a config.json in it; got a file" in result.stderr
    assert result.stdout == ""


def test_a_file_that_is_no_gguf_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"PK\3\4 no model")
    result = run("generate", "a", "-m", tmp_path / "x.gguf")
    assert result.returncode == 1
    assert "expected a GGUF file, which begins with b'GGUF'" in result.stderr
    assert "Traceback" not in result.stderr
