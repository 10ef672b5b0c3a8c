"""How many threads decode: as many as are asked for, through every way of asking."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from monolane import Engine, SamplingParams
from monolane.cli import app
from monolane.errors import BackendError


def test_the_text_is_the_same_whatever_their_number(tiny_model: Path) -> None:
    texts = set()
    for workers in (1, 3, 128):
        with Engine.load(tiny_model, "cpu", workers=workers) as engine:
            assert engine.backend.executor.workers == workers
            texts.add(engine.generate([5, 6, 7], SamplingParams(max_tokens=8)).text)
    assert len(texts) == 1


def test_what_is_no_number_of_workers(tiny_model: Path) -> None:
    with pytest.raises(BackendError, match="workers: expected 1 to 1024, got 0"):
        Engine.load(tiny_model, "cpu", workers=0)
    with pytest.raises(
        BackendError, match=r"workers \(--threads\): the reference backend has one, got 2"
    ):
        Engine.load(tiny_model, "reference", workers=2)


@pytest.mark.parametrize("command", [("generate", "x"), ("chat",), ("serve", "--port", "0")])
def test_each_command_hands_them_on(tiny_model: Path, command: tuple[str, ...]) -> None:
    wish = ("--model", str(tiny_model), "--backend", "cpu", "--threads", "2000")
    result = CliRunner().invoke(app, [*command, *wish])
    assert result.exit_code != 0
    said = re.sub(r"\s+", " ", result.output + str(result.exception))
    assert "workers: expected 1 to 1024, got 2000" in said
