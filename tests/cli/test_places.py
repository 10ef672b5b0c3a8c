"""A place that cannot be written is named before anything is read, fetched or trained."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from monolane.cli import app

# A model that is nowhere: whoever looks for it first has begun to work.
NOWHERE = "/no/such/model"
COMMANDS = {
    "quantize": [NOWHERE, "OUT", "--dtype", "int8"],
    "export": [NOWHERE, "OUT"],
    "retrofit": [NOWHERE, "OUT"],
    "sft": [NOWHERE, "/no/such/chats", "OUT"],
    "tune": ["heads", NOWHERE, "OUT"],
    "train": ["demo", "OUT"],
    "data": ["prepare", "/no/such/recipe", "OUT"],
    "eval": ["--tasks", "perplexity", "--text", "/no/such/text", "-m", NOWHERE, "-o", "OUT"],
    "launch": ["tiny", "OUT"],
}
TORCH = ("train", "tune", "launch")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("below", ["", "x", "x/y"])
def test_a_file_is_no_place_for_a_folder(command: str, below: str, tmp_path: Path) -> None:
    if command in TORCH:
        pytest.importorskip("torch")
    file = tmp_path / "file"
    file.touch()
    words = [str(file / below) if word == "OUT" else word for word in COMMANDS[command]]
    result = CliRunner().invoke(app, [command, *words])
    message = str(result.exception)
    assert message.startswith(f"{file / below}: "), message
    assert "expected a folder or nothing, got a file" in message or "Not a directory" in message
    assert "make room" not in message
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_the_right_to_write_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    result = CliRunner().invoke(
        app, ["quantize", "-m", NOWHERE, "-o", str(tmp_path / "x"), "--dtype", "int8"]
    )
    tmp_path.chmod(0o700)
    assert str(result.exception).startswith(f"{tmp_path / 'x'}: cannot be written: Permission")


@pytest.mark.parametrize(
    "words",
    [
        ["trace", "-m", NOWHERE, "-o"],
        ["bench", "-m", NOWHERE, "-o"],
        ["bench", "serve", "-o"],
        ["sim", "--device", "h200", "--trace"],
        ["data", "report", "/no/such/corpus", "-o"],
    ],
    ids=lambda words: words[0],
)
def test_no_folder_is_made_unasked(words: list[str], tmp_path: Path) -> None:
    out = tmp_path / "none" / "file.json"
    result = CliRunner().invoke(app, [*words, str(out)])
    message = f"{out}: expected a folder {out.parent}, got none; make it, or choose another place"
    assert str(result.exception) == message
    assert not out.parent.exists()


def test_what_needs_no_torch_loads_none(tmp_path: Path) -> None:
    program = (
        "import sys\nsys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from monolane.cli import main\nmain()"
    )

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, "train", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    wrong = run("nosuch", str(tmp_path / "x"))
    assert wrong.returncode == 1
    assert "nosuch: expected a TOML file or one of" in wrong.stderr
    for words in (("tiny", "--dry-run"), ("demo", "--dry-run")):
        dry = run(*words)
        assert dry.returncode == 0, dry.stderr
        assert "parameters " in dry.stdout


def test_lanes_that_do_not_divide_are_refused_before_a_file_is_dequantised(
    llama_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unpack(*_: object) -> None:
        raise AssertionError("dequantised")

    monkeypatch.setattr("monolane.sources.unpack_gguf", unpack)
    words = ["retrofit", "-m", str(llama_gguf), "-o", str(tmp_path / "out"), "--lanes", "7"]
    result = CliRunner().invoke(app, words)
    assert "in 7 lanes: " in str(result.exception)
