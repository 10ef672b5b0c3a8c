"""``monolane train`` hands its options on, and says what an interrupted run can do."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from monolane.cli import app

pytest.importorskip("torch")
pytest.importorskip("transformers")


def test_options_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Path, dict[str, Any]]] = []

    def train_demo(out: Path, **options: Any) -> SimpleNamespace:
        calls.append((out, options))
        return SimpleNamespace(score=SimpleNamespace(bits_per_byte=1.23456))

    monkeypatch.setattr("monolane.train.train_demo", train_demo)
    result = CliRunner().invoke(app, ["train", "--demo", "x", "--steps", "5", "--seed", "2"])
    assert result.exit_code == 0, result.output
    assert result.stdout == "x\n"
    assert "held-out bits per byte: 1.235" in result.stderr
    ((out, options),) = calls
    assert out == Path("x")
    assert (options["steps"], options["seed"], options["resume"]) == (5, 2, False)


def test_an_interrupt_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def train_demo(out: Path, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("monolane.train.train_demo", train_demo)
    result = CliRunner().invoke(app, ["train", "--demo", "x"])
    assert result.exit_code == 130
    assert "continue with --resume" in result.stderr
