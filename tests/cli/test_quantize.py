"""``monolane quantize`` as a user runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from monolane.engine import Engine
from monolane.model import Quantization, quantize_folder

Result = subprocess.CompletedProcess[str]
PROGRAM = [sys.executable, "-W", "error", "-c", "from monolane.cli import main; main()"]


def run(*arguments: str | Path) -> Result:
    return subprocess.run(
        [*PROGRAM, "quantize", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"COLUMNS": "200"},
        check=False,
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """The tiny model on one lane, whose columns are whole groups."""
    from monolane.model import Checkpoint, parse_config, tensor_specs, write_checkpoint

    folder = tmp_path_factory.mktemp("source")
    for path in tiny_model.iterdir():
        if path.suffix == ".json":
            (folder / path.name).write_bytes(path.read_bytes())
    raw = json.loads((tiny_model / "config.json").read_text()) | {"num_lanes": 1}
    (folder / "config.json").write_text(json.dumps(raw))
    old = Checkpoint.open(tiny_model)
    tensors = [
        (s.name, old[s.name].reshape(-1)[: s.size].reshape(s.shape))
        for s in tensor_specs(parse_config(raw))
    ]
    write_checkpoint(folder, tensors)
    return folder


def test_what_another_tool_quantised_is_repacked(source: Path, tmp_path: Path) -> None:
    """As compressed-tensors writes it: one int8 matrix with a scale a row; all else floats."""
    from monolane.model import Checkpoint, write_checkpoint

    packed, name = tmp_path / "packed", "model.layers.0.attention.wo"
    packed.mkdir()
    for path in source.glob("*.json"):
        (packed / path.name).write_bytes(path.read_bytes())
    weights = {"num_bits": 8, "strategy": "channel"}
    scheme = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": {"weights": weights}},
    }
    raw = json.loads((source / "config.json").read_text()) | {"quantization_config": scheme}
    (packed / "config.json").write_text(json.dumps(raw))
    tensors = dict(Checkpoint.open(source))
    shape = tensors[f"{name}.weight"].shape[1:]
    codes = np.random.default_rng(0).integers(-128, 128, shape)
    tensors[f"{name}.weight"] = codes.astype(np.int8)
    tensors[f"{name}.weight_scale"] = np.full((shape[0], 1), 2.0**-9, np.float32)
    write_checkpoint(packed, tensors.items())
    result = run("-m", packed, "-o", tmp_path / "q", "--dtype", "auto")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{tmp_path / 'q'}\n"
    assert "the same numbers as before, in another order" in result.stderr
    answers = []
    for folder in (packed, tmp_path / "q"):
        with Engine.load(folder) as engine:
            answers.append(engine.logits(list(range(9))))
    np.testing.assert_array_equal(*answers)
    refused = run("-m", source, "-o", tmp_path / "r", "--dtype", "auto")
    assert refused.returncode == 1
    assert "dtype auto: expected a model that another tool quantised" in refused.stderr


def test_the_folder_is_the_answer(source: Path, tmp_path: Path) -> None:
    result = run("-m", source, "-o", tmp_path / "q", "--dtype", "int8")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{tmp_path / 'q'}\n"
    assert "weights 0.2 MB -> 0.1 MB (40.0%)" in result.stderr
    assert "down " in result.stderr
    with Engine.load(tmp_path / "q") as engine:
        assert engine.backend.dtype == "int8"
        assert len(engine.generate("def f", None).token_ids) > 0
    with Engine.load(tmp_path / "q", "reference") as engine:
        assert engine.backend.dtype == "float32"


def test_a_program_reads_json(source: Path, tmp_path: Path) -> None:
    result = run("-m", source, "-o", tmp_path / "q", "--dtype", "int4", "--json")
    assert result.stderr == ""
    answer = json.loads(result.stdout)
    assert (answer["destination"], answer["dtype"]) == (str(tmp_path / "q"), "int4")
    assert answer["bytes_after"] < answer["bytes_before"]
    assert {"name", "role", "relative_error"} == answer["matrices"][0].keys()


def test_overwriting_is_asked_for(source: Path, tmp_path: Path) -> None:
    quantize_folder(source, tmp_path / "q", Quantization(8))
    refused = run("-m", source, "-o", tmp_path / "q", "--dtype", "int4")
    assert refused.returncode == 1
    assert "expected no such folder, got one with files in it" in refused.stderr
    assert run("-m", source, "-o", tmp_path / "q", "--dtype", "int4", "--overwrite").returncode == 0
    assert (
        json.loads((tmp_path / "q" / "config.json").read_text())["quantization_config"]["bits"] == 4
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-m", "{source}", "-o", "{out}"], 2, "expected --dtype, got none"),
        (["-m", "{source}", "--dtype", "int8"], 2, "expected --output, got none"),
        (
            ["-m", "{source}", "-o", "{out}", "--dtype", "fp8"],
            2,
            "expected one of int8, int4, auto",
        ),
        (
            ["-m", "/no/such", "-o", "{out}", "--dtype", "int8"],
            1,
            "expected 'demo', 'smollm2', a folder or a .gguf file",
        ),
        (["-m", "{tiny}", "-o", "{out}", "--dtype", "int8"], 1, "columns are a multiple of 32"),
    ],
)
def test_wrong_usage_and_failures(
    source: Path, tiny_model: Path, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    places = {"source": source, "tiny": tiny_model, "out": tmp_path / "q"}
    result = run(*(argument.format(**places) for argument in arguments))
    assert result.returncode == code
    assert message in " ".join(result.stderr.replace("│", "").split())
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_help_is_there() -> None:
    result = run("--help")
    assert result.returncode == 0
    assert "int8 (8.5 bits a weight" in result.stdout
