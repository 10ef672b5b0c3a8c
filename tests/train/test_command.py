"""``monolane train`` and ``monolane export`` as typed, without the training itself."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from monolane.cli._app import app
from monolane.errors import CheckpointError, ConfigError
from monolane.train import RunConfig, train_run


def run(*arguments: object) -> str:
    """Return what the command prints; errors of ours come through."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return re.sub(r"(\x1b\[[0-9;]*m|[│\s])+", " ", result.output)


def test_a_dry_run_prints_the_forecast() -> None:
    text = run("train", "laneformer_2b_pretrain", "--dry-run", "--set", "data.rows_per_step=768")
    assert re.search(r"parameters +2,320,736,256", text)
    assert re.search(r"tokens per step +3,145,728", text)


def test_an_unknown_config_is_told_what_there_is() -> None:
    with pytest.raises(ConfigError, match="a TOML file or one of laneformer_100m, laneformer_20m"):
        run("train", "laneformer", "-o", "out")


def test_a_folder_is_needed() -> None:
    assert "expected a folder to write, got none" in run("train", "tiny")


def test_a_run_is_exported_by_its_folder(tiny: RunConfig, tmp_path: Path) -> None:
    from dataclasses import replace

    short = replace(tiny, schedule=replace(tiny.schedule, steps=1, warmup=0, decay=0))
    train_run(short, tmp_path / "run", lambda start: ())
    out = tmp_path / "out"
    assert str(out) in run(
        "export", "-m", tmp_path / "run", "-o", out, "--dtype", "bfloat16"
    ).replace(" ", "")
    assert (out / "config.json").is_file()
    assert (out / "tokenizer.json").is_file()
    assert (out / "modeling_laneformer.py").is_file()
    with pytest.raises(CheckpointError, match="a checkpoint after 5 steps, found those after 0, 1"):
        run("export", "-m", tmp_path / "run", "-o", tmp_path / "other", "--step", 5)


def test_a_model_folder_has_no_steps(tmp_path: Path) -> None:
    assert "no training run, so it has no steps" in run(
        "export", "-m", "demo", "-o", tmp_path / "out", "--step", 1
    )
