"""Models of strangers on the command line: one line of error, whatever their files hold."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from monolane.model import Checkpoint, write_checkpoint

PROGRAM = [sys.executable, "-W", "error", "-c", "from monolane.cli import main; main()"]
OBEYED = "\x1b]0;title\x07\nmonolane: a forged line\u202e"


def error_of(*words: str | Path, code: int = 1) -> str:
    """Run a command that fails; return the one line that it says."""
    done = subprocess.run(
        [*PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.isprintable()
    assert line.startswith("monolane: ")
    return line


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for path in tiny_model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def generate(model: Path, *words: str) -> str:
    return error_of("generate", "--model", model, "-n", "1", *words, "hi")


def test_what_a_template_raises(model: Path) -> None:
    text = "{{ raise_exception(" + json.dumps(OBEYED) + ") }}"
    (model / "chat_template.jinja").write_text(text, encoding="utf-8")
    assert "\\x1b]0;title\\x07\\nmonolane: a forged line\\u202e" in generate(model, "--chat")


def test_the_name_of_a_shard(model: Path) -> None:
    names = dict.fromkeys(Checkpoint.open(model), f"{OBEYED}.safetensors")
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert "\\x1b]0;title" in generate(model)


def test_the_name_of_a_folder_in_a_warning(model: Path) -> None:
    folder = model.with_name(f"m{OBEYED}")
    model.rename(folder)
    (folder / "NOTICE").symlink_to("/etc/hostname")
    out = folder.with_name("out")
    done = subprocess.run(
        [*PROGRAM, "quantize", "-m", str(folder), "-o", str(out), "--dtype", "int8", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "\x1b" not in done.stderr
    assert "forged" not in done.stderr.splitlines()[-1][:20]


def test_a_pipe(model: Path) -> None:
    pipe = model / "model.gguf"
    os.mkfifo(pipe)
    assert "expected a regular file, got a pipe" in generate(pipe)


def test_weights_that_are_no_numbers(model: Path) -> None:
    import numpy as np

    tensors = [
        (name, np.full_like(array, np.nan) if "norm" in name else array)
        for name, array in Checkpoint.open(model).items()
    ]
    write_checkpoint(model, [(name, np.array(array)) for name, array in tensors])
    for words in (("-t", "0"), ()):
        assert "logits: expected a finite number" in generate(model, "--ignore-eos", *words)


def test_a_folder_that_may_not_be_read(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the operating system that no reader looks for, as root sees none of these."""
    (model / "config.json").unlink()
    (model / "config.json").mkdir()
    assert "model" in generate(model)


def test_a_vocabulary_beyond_the_embedding(tmp_path: Path, write_gguf: Callable[..., Path]) -> None:
    """The tokens are counted against the embedding's rows before one of them is read."""
    import numpy as np

    shapes = {f"blk.0.attn_{x}": (32, 32) for x in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{x}": (32, 32) for x in ("gate", "up", "down")}
    shapes |= {"token_embd": (40, 32), "blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,)}
    shapes |= {"output_norm": (32,)}
    tensors = {f"{name}.weight": np.ones(shape, np.float32) for name, shape in shapes.items()}
    sizes = {"block_count": 1, "context_length": 64, "embedding_length": 32}
    sizes |= {"feed_forward_length": 32, "attention.head_count": 4}
    fields = {f"llama.{name}": size for name, size in sizes.items()}
    fields |= {"general.architecture": "llama", "llama.attention.layer_norm_rms_epsilon": 1e-5}
    fields |= {"tokenizer.ggml.model": "llama"}
    fields["tokenizer.ggml.tokens"] = [str(i) for i in range(5000)]
    path = write_gguf(tmp_path / "model.gguf", fields, tensors)
    assert "tokens: expected at most 40 texts, as the model has use for, got 5000" in generate(path)
