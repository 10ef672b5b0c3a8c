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
    result = CliRunner().invoke(app, ["train", "demo", "-o", "x", "--steps", "5", "--seed", "2"])
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
    result = CliRunner().invoke(app, ["train", "demo", "-o", "x"])
    assert result.exit_code == 130
    assert "continue with --resume" in result.stderr


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The configs of runs that would have been trained."""
    configs: list[Any] = []

    def train_run(config: Any, run: Path, listeners: Any, **options: Any) -> None:
        configs.append(config)

    monkeypatch.setattr("monolane.train.train_run", train_run)
    return configs


def test_a_config_honours_what_the_demo_honours(trained: list[Any], tmp_path: Path) -> None:
    options = ["--steps", "20", "--seed", "3", "--threads", "2", "--compile", "--from", tmp_path]
    result = CliRunner().invoke(
        app, ["train", "tiny", "-o", "x", "--set", "seed=1", *map(str, options)]
    )
    assert result.exit_code == 0, result.output
    (config,) = trained
    assert (config.schedule.steps, config.seed, config.compute.threads) == (20, 3, 2)
    assert config.compute.compile
    assert config.model.init_from == str(tmp_path)


def test_a_dry_run_honours_them_too() -> None:
    result = CliRunner().invoke(app, ["train", "tiny", "--dry-run", "--world-size=1", "--steps=77"])
    assert result.exit_code == 0, result.output
    assert "steps              77:" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["tiny", "-o", "x", "--minutes", "3"], "--minutes"),
        (["tiny", "-o", "x", "--world-size", "3"], "--world-size"),
        (["tiny", "-o", "x", "--mfu", "0.3"], "--mfu"),
        (["tiny", "-o", "x", "--device", "H200"], "--device"),
        (["tiny", "-o", "x", "--dry-run", "--resume"], "--resume"),
        (["demo", "-o", "x", "--set", "seed=1"], "--set"),
        (["demo", "-o", "x", "--device", "H200"], "--device"),
        (["demo", "-o", "x", "--dry-run", "--mfu", "0.3"], "--mfu"),
        (["demo", "-o", "x", "--steps", "3", "--minutes", "3"], "--minutes"),
        (["demo", "-o", "x", "--resume", "--minutes", "3"], "--minutes"),
        (["demo", "-o", "x", "--resume", "--seed", "3"], "--seed"),
        (["demo", "-o", "x", "--resume", "--from", "demo"], "--from"),
        (["--demo", "x", "y"], "--demo"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    trained: list[Any], monkeypatch: pytest.MonkeyPatch, arguments: list[str], option: str
) -> None:
    monkeypatch.setattr("monolane.train.train_demo", lambda *_, **__: trained.append("demo"))
    result = CliRunner().invoke(app, ["train", *arguments])
    assert result.exit_code == 2, result.output
    assert option in result.stderr
    assert not trained
