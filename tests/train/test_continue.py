"""Mid-training goes on where pre-training ended: weights, and the moments of its optimizer."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch

from monolane.errors import CheckpointError, ConfigError
from monolane.hf import LaneformerForCausalLM
from monolane.train import RunConfig, StepRecord, read_weights, train_run
from monolane.train._build import empty_model
from monolane.train._checkpoints import checkpoint_folder
from monolane.train._inputs import open_blend, open_corpus
from monolane.train._process_group import open_world
from monolane.train._trainer import Trainer

Moments = Literal["auto", "carry", "restart"]


class Losses:
    """Listens to a run."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def step(self, record: StepRecord) -> None:
        self.values.append(record.loss)

    def validation(self, *_: object) -> None: ...
    def event(self, *_: object) -> None: ...
    def close(self) -> None: ...


def constant(config: RunConfig, steps: int) -> RunConfig:
    """Return the config with a rate that stays, so that two phases are one run cut in two."""
    return replace(config, schedule=replace(config.schedule, steps=steps, warmup=0, decay=0))


def train(config: RunConfig, run: Path) -> list[float]:
    losses = Losses()
    train_run(config, run, lambda start: (losses,))
    return losses.values


@pytest.fixture(scope="module")
def first(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunConfig]:
    """A run of eight steps, and its config."""
    from monolane.train import load_config

    config = constant(load_config("tiny", [f"data.corpus={corpus}", "log.tensorboard=false"]), 8)
    folder = tmp_path_factory.mktemp("first") / "run"
    train(config, folder)
    return folder, config


def second(first: tuple[Path, RunConfig], moments: Moments, steps: int = 4) -> RunConfig:
    """Return the next phase: it begins with the first's weights, behind the rows it read."""
    run, config = first
    blend = open_blend(config, open_corpus(config))
    config = constant(config, steps)
    return replace(
        config,
        model=replace(config.model, init_from=str(run)),
        data=replace(config.data, after=blend.before(8 * config.data.rows_per_step)),
        optimizer=replace(config.optimizer, moments=moments),
    )


@pytest.mark.parametrize("moments", ["auto", "carry"])
def test_two_phases_are_one_run_cut_in_two(
    first: tuple[Path, RunConfig], moments: Moments, tmp_path: Path
) -> None:
    whole = train(constant(first[1], 12), tmp_path / "whole")
    assert train(second(first, moments), tmp_path / "second") == whole[8:]  # bit for bit
    expected, got = read_weights(tmp_path / "whole", 12), read_weights(tmp_path / "second", 4)
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_a_recipe_may_restart_the_moments(first: tuple[Path, RunConfig], tmp_path: Path) -> None:
    carried = train(second(first, "carry", 2), tmp_path / "carried")
    restarted = train(second(first, "restart", 2), tmp_path / "restarted")
    assert carried[0] == restarted[0]  # the same weights, and the same rows
    assert carried[1] != restarted[1]
    config = second(first, "restart")
    with open_world(config) as world:
        state = Trainer(config, world).optimiser.state()
    assert not any(value.any() for value in state.values())


def test_a_checkpoint_may_be_named_itself(first: tuple[Path, RunConfig], tmp_path: Path) -> None:
    config = second(first, "carry", 1)
    named = replace(config.model, init_from=str(checkpoint_folder(first[0], 8)))
    one, other = (
        train(replace(config, model=m), tmp_path / m.init_from[-3:]) for m in (config.model, named)
    )
    assert one == other


def test_a_resumed_phase_needs_the_first_no_more(
    first: tuple[Path, RunConfig], tmp_path: Path
) -> None:
    config = second(first, "carry", 2)
    train(config, tmp_path / "run")
    gone = replace(config.model, init_from=str(tmp_path / "gone"))
    kept = tmp_path / "run" / "config.toml"
    kept.write_text(kept.read_text().replace(str(first[0]), gone.init_from))
    longer = constant(replace(config, model=gone), 3)
    train_run(longer, tmp_path / "run", lambda start: (), resume=True)


def test_what_cannot_go_on_is_refused(first: tuple[Path, RunConfig], tmp_path: Path) -> None:
    config = second(first, "carry")
    LaneformerForCausalLM(empty_model(config.model).config).save_pretrained(tmp_path / "folder")
    for start in ("", str(tmp_path / "folder")):
        other = replace(config, model=replace(config.model, init_from=start))
        with pytest.raises(ConfigError, match="optimizer.moments: expected a run as model.init_fr"):
            train(other, tmp_path / "run")
    other = replace(config, model=replace(config.model, swa_layers=(0,)))
    with pytest.raises(ConfigError, match="init_from: .* differs in layers; mend"):
        train(other, tmp_path / "run")
    other = replace(config, optimizer=replace(config.optimizer, name="muon"))
    with pytest.raises(CheckpointError, match=r"momentum.*optimizer.moments to 'restart'"):
        train(other, tmp_path / "run")
    assert not (tmp_path / "run").exists()
