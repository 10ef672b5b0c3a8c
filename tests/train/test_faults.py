"""Disks, files and data that a run cannot use: one message each, and nothing is lost."""

import errno
import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from monolane.cli import app
from monolane.errors import CheckpointError, ConfigError, DataError
from monolane.train import (
    DemoRecipe,
    Progress,
    RunConfig,
    kept_settings,
    load_config,
    train_demo,
    train_run,
)
from monolane.train._checkpoints import checkpoint_steps
from monolane.train._checksums import write_durably
from monolane.train._demo import train as demo
from monolane.train._demo.pace import Pace
from monolane.train._journal import Journal
from monolane.train._process_group import open_world
from monolane.train._trainer import Trainer

from .test_damage import Ear


def test_a_full_disk_is_told_and_the_checkpoint_before_it_stays(
    tiny: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(tiny, checkpoint=replace(tiny.checkpoint, every=2), log=tiny.log)
    run, note = tmp_path / "run", Journal._write

    def full(journal: Journal, line: dict[str, Any]) -> None:
        if line["step"] == 3:
            raise OSError(errno.ENOSPC, "No space left on device", "log.jsonl")
        note(journal, line)

    def seal(path: Path, text: str) -> None:
        if "step-00000004" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write_durably(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_write", full)
        with pytest.raises(CheckpointError, match="run: the disk refuses: No space left .*: log"):
            train_run(config, run, lambda start: (Journal(run, start),))
    assert checkpoint_steps(run) == [0, 2]
    with monkeypatch.context() as patch:
        patch.setattr("monolane.train._checksums.write_durably", seal)  # in the thread that writes
        with pytest.raises(CheckpointError, match="cannot be written: No space left on device; m"):
            train_run(config, run, Ear(), resume=True)
    assert checkpoint_steps(run) == [0, 2]


def test_a_file_in_place_of_the_folder(tiny: RunConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    with pytest.raises(CheckpointError, match="out: the disk refuses: "):
        train_run(tiny, out, Ear())
    assert out.read_text() == "mine"


def test_files_that_are_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="config.toml: expected TOML, got"):
        load_config(tmp_path / "config.toml")
    (tmp_path / "settings.json").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="settings.json: expected a list of settings"):
        kept_settings(tmp_path)


def test_a_token_that_the_model_has_no_row_for(tiny: RunConfig) -> None:
    rows = SimpleNamespace(ids=np.array([[1, tiny.model.vocab_size]]))
    with (
        open_world(tiny) as world,
        pytest.raises(DataError, match=r"step 3: expected token ids below model.vocab_size = \d+"),
    ):
        Trainer(tiny, world).step(2, rows)  # type: ignore[arg-type]


def test_an_isolated_gradient_that_is_not_finite_is_left_out(
    tiny: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    norm, steps = Trainer.norm, itertools.count()

    def spoiled(trainer: Trainer) -> Any:
        if next(steps) == 2:
            for parameter in trainer.model.parameters():
                assert parameter.grad is not None
                parameter.grad.fill_(float("inf"))
                break
        return norm(trainer)

    monkeypatch.setattr(Trainer, "norm", spoiled)
    config = replace(tiny, schedule=replace(tiny.schedule, steps=5, warmup=4, decay=0))
    ear = Ear()
    assert train_run(config, tmp_path / "run", ear).skipped == ()
    assert [(step, kind) for step, kind, _ in ear.events if kind != "checkpoint"] == [
        *((0, "start"), (3, "skipped"), (5, "end")),
    ]


def test_a_validation_of_nothing_is_said(tiny: RunConfig, tmp_path: Path) -> None:
    validation = replace(tiny.validation, every=1, sources=(), tasks=())
    config = replace(tiny, schedule=replace(tiny.schedule, steps=1, warmup=0, decay=0))
    ear = Ear()
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr("monolane.data.Corpus.held_out", lambda self, name: ())
        train_run(replace(config, validation=validation), tmp_path / "run", ear)
    assert any(kind == "warning" and "nothing is scored" in text for _, kind, text in ear.events)


def test_resume_needs_no_settings_again(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = [f"data.corpus={corpus}", "log.tensorboard=false", "checkpoint.every=8"]
    given = [part for one in settings for part in ("--set", one)]
    first = CliRunner().invoke(app, ["train", "tiny", "-o", str(run), *given, "--steps", "16"])
    assert first.exit_code == 0, first.output
    again = CliRunner().invoke(app, ["train", "tiny", "-o", str(run), "--resume"])
    assert again.exit_code == 0, again.output
    assert "step 16  end" in again.stderr
    assert kept_settings(run) == [*settings, "schedule.steps=16"]


def test_dry_runs_of_small_configs_and_of_the_demo() -> None:
    tiny = CliRunner().invoke(app, ["train", "tiny", "--dry-run"])
    assert tiny.exit_code == 0, tiny.output
    assert "1 x H100" in tiny.stdout
    large = CliRunner().invoke(app, ["train", "laneformer_2b_pretrain", "--dry-run"])
    assert "192 x H100" in large.stdout
    demo = CliRunner().invoke(app, ["train", "demo", "--dry-run", "--minutes", "5"])
    assert demo.exit_code == 0, demo.output
    assert "steps              as many as fit into 5 minutes" in demo.stdout
    assert "4,6" in demo.stdout  # million parameters
    assert "rate" not in demo.stdout


@pytest.mark.parametrize("slower", [1.0, 3.0])
def test_a_demo_ends_in_time_on_a_machine_that_became_slower(
    slower: float, recipe: DemoRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps take 0.1 s, and twice that at the full context; then the machine is ``slower``."""
    now = 0.0
    calls: list[tuple[int, int]] = []

    def trained(config: RunConfig, run: Path, listeners: Any, **options: Any) -> Progress:
        nonlocal now
        begun = calls[-1][1] if calls else 0
        end = options.get("until") or config.schedule.steps
        long = max(0, end - max(begun, config.schedule.short_until))
        assert begun <= config.schedule.first_change  # a change after it would be another run
        now += 0.1 * slower * (end - begun + long)
        calls.append((begun, end))
        return Progress(step=end, seconds=now)

    minutes, said = 2.0, list[str]()
    steps = int(0.9 * minutes * 60 / (0.1 * (1 + recipe.long_share)))
    config = recipe.run_config(tmp_path / "corpus", steps, precision="float32")
    monkeypatch.setattr(demo, "train_run", trained)
    monkeypatch.setattr(demo, "load_config", lambda path: config)
    made, progress = demo._train_in_time(
        config, recipe, tmp_path, 2.0, 0.9 * minutes * 60, False, said.append, lambda: now
    )
    assert progress.step == made.schedule.steps
    assert 0.85 * minutes * 60 < now < 1.05 * minutes * 60
    assert bool(said) == (slower > 1)


def test_what_comes_before_and_after_training_is_in_the_minutes_of_a_demo(
    recipe: DemoRecipe, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute, of which reading takes 10 s, measuring 20 s and scoring as long as it must."""
    now, lengths = 0.0, list[int]()
    pace = Pace("float32", short=0.1, long=0.2)
    prepare = demo.prepare_material

    def prepared(*arguments: Any) -> Any:
        nonlocal now
        now += 10
        return prepare(*arguments)

    def measured(*_: object) -> Pace:
        nonlocal now
        now += 20
        return pace

    class TrainedError(Exception):
        pass

    def trained(config: RunConfig, *_: object) -> None:
        lengths.append(config.schedule.steps)
        raise TrainedError

    monkeypatch.setattr(demo, "prepare_material", prepared)
    monkeypatch.setattr(demo, "measure_pace", measured)
    monkeypatch.setattr(demo, "_train_in_time", trained)
    for minutes, scoring in ((1.0, 6.0), (1.0, 24.0), (0.4, 0.0)):
        now = 0.0
        monkeypatch.setattr(demo, "_scoring", lambda *_, scoring=scoring: scoring)
        with pytest.raises(TrainedError):
            train_demo(
                tmp_path / f"{minutes} {scoring}",
                minutes=minutes,
                recipe=recipe,
                library=library,
                clock=lambda: now,
            )
    seconds = pace.mean(recipe)
    assert lengths == [int((60 - 30 - 6) / seconds), int((60 - 30 - 24) / seconds), 1]


def test_few_steps_are_warned_of() -> None:
    said: list[str] = []
    demo._say_length(99, 1.0, said.append)
    assert "training 99 steps, as many as fit into 1 minutes" in said
    assert "fewer than 100 steps" in said[-1]
    said.clear()
    demo._say_length(100, 1.0, said.append)
    assert len(said) == 1
