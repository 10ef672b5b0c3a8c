"""A .gguf file on the command line: it runs as it is, and other models are made of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from monolane.cli import app
from monolane.cpu import CpuExecutor
from monolane.engine import Engine, SamplingParams
from monolane.errors import MonolaneError
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
    simulated = run("sim", *asked[2:])
    assert simulated.stdout.split(" · ")[1] == "q4_k, q6_k"
    executor = CpuExecutor(Weights.open(path), context=8, slots=1, workers=1)
    records = [json.loads(run(*words, "--json").stdout) for words in (asked, ("sim", *asked[2:]))]
    assert [record["dtype"] for record in records] == ["q4_k, q6_k"] * 2
    assert records[0]["total"]["bytes"] == executor.bytes_per_token(8)


def test_bench_takes_a_file(llama_gguf: Path) -> None:
    common = ("--runs", 1, "--tokens", 2, "--startup", 1, "--buffer", 1, "--prefill", 8, "--json")
    result = run("bench", "-m", llama_gguf, "--before", 8, *common)
    assert result.returncode == 0, result.stderr
    records = json.loads(result.stdout)["records"]
    names = ["read_bandwidth", "decode", "prefill", "startup", "memory"]
    assert [record["name"] for record in records] == names


def test_verify_of_a_file_that_transformers_cannot_load(
    llama_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers", reason="needs monolane[hf]")

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("other sizes\nand a table")  # as it does of shapes that it misreads

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", refuse)
    result = invoke("verify", "-m", llama_gguf)
    assert "Transformers reads too, got: other sizes; 'monolane export'" in str(result.exception)


def test_bench_of_a_mixture_whose_experts_are_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llama_gguf: Path
) -> None:
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    from _gguf import random_gguf

    path = random_gguf(tmp_path, "moe-tiny", "Q8_0")
    common = ("--runs", 1, "--tokens", 2, "--startup", 1, "--buffer", 1, "--prefill", 8, "--json")
    asked = ("bench", "-m", path, "--before", 8, *common, "--expert-memory")
    result = run(*asked, "64K")
    assert result.returncode == 0, result.stderr
    decode = json.loads(result.stdout)["records"][1]
    assert (decode["name"], decode["expert_memory"]) == ("decode", "64K")
    # It reaches the executor: these are refused there.
    assert "got 'much'" in run(*asked, "much").stderr
    dense = run("bench", "-m", llama_gguf, "--before", 8, *common, "--expert-memory", "64K")
    assert "expert_memory: expected a mixture" in dense.stderr


def invoke(*arguments: object) -> Result:
    """The command within this process: torch takes seconds to import in one of its own."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_commands_that_make_a_model_of_another_dequantise_a_file(
    llama_gguf: Path, tmp_path: Path
) -> None:
    commands = {"quantize": ("--dtype", "int8"), "export": (), "retrofit": ("--lanes", 2)}
    for command, options in commands.items():
        made = invoke(command, llama_gguf, tmp_path / command, *options)
        assert made.exit_code == 0, made.output
        assert made.stdout == f"{tmp_path / command}\n"
        assert "dequantised" in made.stderr or "quantising lost" in made.stderr
        again = invoke(command, llama_gguf, tmp_path / command, *options)
        assert "pass overwrite=True (--overwrite)" in str(again.exception)
    assert {path.name for path in tmp_path.iterdir()} == {*commands, llama_gguf.name}
    # Float32 in the file: the same model, whose lanes sum in another order.
    answers = []
    for model in (llama_gguf, tmp_path / "export", tmp_path / "retrofit"):
        with Engine.load(model, "reference") as engine:
            answers.append(engine.generate("a", SamplingParams(max_tokens=6)).token_ids)
    assert answers[0] == answers[1] == answers[2]


def test_what_a_file_cannot_give_is_said(llama_gguf: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for arguments, wanted in (
        (
            ("quantize", "-m", llama_gguf, "-o", out, "--dtype", "auto"),
            "got a .gguf file, which runs as it is",
        ),
        (
            ("export", "-m", llama_gguf, "-o", out, "--dtype", "int8"),
            "dtype: expected one of bfloat16",
        ),
        (
            ("retrofit", "-m", llama_gguf, "-o", out, "--lanes", 3),
            "in 3 lanes: lanes: expected a number",
        ),
        (
            ("export", "-m", llama_gguf, "-o", llama_gguf),
            "expected a folder or nothing, got a file",
        ),
    ):
        result = invoke(*arguments)
        assert isinstance(result.exception, MonolaneError)
        assert wanted in str(result.exception)
        assert [path.name for path in tmp_path.iterdir()] == [llama_gguf.name]


def test_an_error_names_what_was_given_and_no_folder_that_is_gone(
    llama_gguf: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="needs the extra 'sft'")
    folder = tmp_path / "folder"
    assert invoke("export", "-m", llama_gguf, "-o", folder).exit_code == 0
    (folder / "tokenizer.json").unlink()
    out, late = tmp_path / "out", ("--lanes", 2, "--delay", 1, "--distil", __file__)
    for arguments, wanted in (
        (
            ("retrofit", "-m", llama_gguf, "-o", out, "--lanes", 3),
            f"{llama_gguf}, in 3 lanes: lanes: expected",
        ),
        (("retrofit", "-m", folder, "-o", out, *late), f"{folder}: expected a tokenizer.json"),
        (
            ("retrofit", "-m", folder, "-o", folder.parent, *late),
            f"{folder.parent}: expected a folder apart",
        ),
    ):
        assert str(invoke(*arguments).exception).startswith(wanted)
        assert {path.name for path in tmp_path.iterdir()} == {folder.name, llama_gguf.name}


def test_verify_takes_a_file_and_refuses_codes(llama_gguf: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    result = invoke("verify", "-m", llama_gguf, "--tokens", 20)
    assert result.exit_code == 0, result.output
    assert "the implementations agree" in result.stdout
    assert (
        invoke("quantize", "-m", llama_gguf, "-o", tmp_path / "q", "--dtype", "int8").exit_code == 0
    )
    result = invoke("verify", "-m", tmp_path / "q")
    assert "expected float weights to compare, got int8 codes" in str(result.exception)


def test_a_file_that_is_no_gguf_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"PK\3\4 no model")
    result = run("generate", "a", "-m", tmp_path / "x.gguf")
    assert result.returncode == 1
    assert "expected a GGUF file, which begins with b'GGUF'" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_destination_that_cannot_be_written_is_an_error_of_one_line(
    llama_gguf: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "out"
    for command in (
        ("export", "-m", llama_gguf, "-o", out),
        ("quantize", "-m", llama_gguf, "-o", out, "--dtype", "int8"),
        ("retrofit", "-m", llama_gguf, "-o", out, "--lanes", 2),
    ):
        result = CliRunner().invoke(app, [*map(str, command)])
        assert isinstance(result.exception, MonolaneError), result.output
        assert "file/out: cannot be written: Not a directory: " in str(result.exception)
