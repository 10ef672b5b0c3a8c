"""``--lora`` of the command line: one folder, or named ones where the command serves."""

import json
import subprocess
import sys
from pathlib import Path

from monolane import Engine, SamplingParams
from tests.peft_folders import LANES, write_adapter


def generate(model: Path, *more: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["-m", "monolane", "generate", "x", "-m", model, "-n", "8", "--ignore-eos", "--json"]
    return subprocess.run(
        [sys.executable, *map(str, (*command, "--temperature", "0", *more))],
        capture_output=True,
        text=True,
        check=False,
    )


def test_generate_answers_by_an_adapter(tiny_model: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter", tiny_model, 0, LANES)
    with Engine.load(tiny_model, lora=adapter) as engine:
        wanted = engine.generate("x", SamplingParams(max_tokens=8, ignore_eos=True))
    assert json.loads(generate(tiny_model, "--lora", adapter).stdout)["text"] == wanted.text
    assert json.loads(generate(tiny_model).stdout)["text"] != wanted.text


def test_a_folder_without_an_adapter_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    found = generate(tiny_model, "--lora", tmp_path)
    assert found.returncode == 1
    assert "lora: expected a folder in PEFT's layout" in found.stderr
    twice = generate(tiny_model, "--lora", tmp_path, "--backend", "cuda")
    assert twice.returncode == 2
    assert "lora: expected backend cpu or reference, got 'cuda'" in twice.stderr
