"""What a model thinks before it answers: dimmed on a terminal, and never on stdout."""

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monolane import Engine, SamplingParams
from monolane.cli._answer import chat_stream, print_answer
from monolane.engine import Guide
from monolane.errors import RequestError

PROGRAM = [sys.executable, "-W", "error", "-c", "from monolane.cli import main; main()"]
TEMPLATE = (
    "{{ messages[-1].content }}:"
    "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}"
)
USER = {"role": "user", "content": "x"}


class Says:
    """A constraint that has a model say these tokens, and nothing else."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = tuple(ids)

    def step(self, _: int | None) -> Guide:
        return Guide(None, self._ids)


@pytest.fixture
def thinker(tiny_model: Path, tmp_path: Path) -> Path:
    """A folder whose template begins a thinking part, unless it is switched off."""
    folder = Path(shutil.copytree(tiny_model, tmp_path / "thinker"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture
def engine(thinker: Path) -> Iterator[Engine]:
    with Engine.load(thinker) as engine:
        yield engine


def says(engine: Engine, text: str, thinking: bool | None = None) -> tuple[str, str, bool]:
    stream = chat_stream(engine, [USER], SamplingParams(max_tokens=60), thinking)
    job = stream._job
    ids = engine.tokenizer.encode(text, add_special_tokens=False)
    return print_answer(engine.stream(job.prompt_ids, job.params, Says(ids)))


@pytest.mark.parametrize("terminal", [True, False])
def test_thinking_is_dimmed_on_a_terminal_and_not_on_stdout(
    engine: Engine,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert says(engine, "Hm.</think>\n\nYes.") == ("Yes.", "Hm.", False)
    out, err = capsys.readouterr()
    assert out == "Yes.\n"
    assert err.replace("\x1b[0m\x1b[2m", "") == ("\x1b[2mHm.\x1b[0m\n\n" if terminal else "")


def test_the_switch(engine: Engine, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert says(engine, "Hm.", thinking=False) == ("Hm.", "", False)
    assert says(engine, "Hm.", thinking=True) == ("", "Hm.", False)
    assert capsys.readouterr() == ("Hm.\n\n", "")
    with (
        Engine.load(tiny_model) as plain,
        pytest.raises(RequestError, match="--no-thinking: expected neither, since this model's"),
    ):
        says(plain, "Hm.", thinking=False)


def run(*arguments: str | Path, stdin: str = "", stderr: int) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_commands(thinker: Path) -> None:
    """The model is a random one, whose thinking never ends."""
    common = ("generate", "x", "--chat", "-m", thinker, "-n", 8, "--ignore-eos")
    answer = json.loads(run(*common, "--json", stderr=subprocess.PIPE).stdout)
    assert answer["text"] == ""
    assert answer["thinking"]
    off = run(*common, "--json", "--no-thinking", stderr=subprocess.PIPE)
    assert json.loads(off.stdout)["thinking"] == ""
    assert json.loads(off.stdout)["text"]

    host, terminal = pty.openpty()
    assert run("chat", "-m", thinker, "-n", 8, stdin="x\n", stderr=terminal).stdout.strip() == ""
    os.close(terminal)
    seen = b""
    while part := os.read(host, 1 << 16) if b"tokens/s" not in seen else b"":
        seen += part
    os.close(host)
    shown = seen.decode("utf-8", "replace").replace("\r\n", "\n").replace("\x1b[0m\x1b[2m", "")
    assert f"\x1b[2m{answer['thinking'][:4]}" in shown

    wrong = run("generate", "x", "--thinking", "-m", thinker, stderr=subprocess.PIPE)
    assert wrong.returncode == 2
    assert "--thinking, --no-thinking: expected --chat with it" in wrong.stderr
