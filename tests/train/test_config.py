import tomllib
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from monolane.errors import ConfigError, RequestError
from monolane.train import RunConfig, load_config, shipped_configs, write_config
from monolane.train._config import differences


@pytest.mark.parametrize("name", shipped_configs())
def test_a_shipped_config_survives_being_written(name: str, tmp_path: Path) -> None:
    config = load_config(name)
    path = tmp_path / "config.toml"
    path.write_text(write_config(config))
    assert load_config(path) == config
    assert differences(config, load_config(path)) == {}


def test_the_2b_recipe_is_the_published_one() -> None:
    pretrain, midtrain = (
        load_config("laneformer_2b_pretrain"),
        load_config("laneformer_2b_midtrain"),
    )
    for config in (pretrain, midtrain):
        assert config.data.tokens_per_step == 4096 * 1536 == 6_291_456
        assert config.optimizer.name == "adamw"
        assert config.compute.precision == "bfloat16"
    assert (pretrain.schedule.steps, midtrain.schedule.steps) == (620_000, 310_000)
    # Four and two trillion tokens, as published, to the digits given.
    assert round(pretrain.schedule.steps * pretrain.data.tokens_per_step / 1e12) == 4
    assert round(midtrain.schedule.steps * midtrain.data.tokens_per_step / 1e12) == 2
    assert pretrain.data.weights == {
        "web": 63.2,
        "code": 21.0,
        "math_stem_reasoning": 6.3,
        "multilingual": 5.0,
        "qa_instruction_academic": 4.5,
    }
    assert midtrain.data.weights == {
        "web": 10.0,
        "code": 59.01,
        "math_stem_reasoning": 30.01,
        "qa_instruction_academic": 1.0,
    }
    for config in (pretrain, midtrain):  # percentages, rounded to hundredths
        assert sum(config.data.weights.values()) == pytest.approx(100, abs=0.025)


def test_the_shipped_files_are_in_the_package() -> None:
    folder = resources.files("monolane.train").joinpath("configs")
    assert {"tiny", "laneformer_20m", "laneformer_100m"} <= set(shipped_configs())
    for name in shipped_configs():
        tomllib.loads(folder.joinpath(f"{name}.toml").read_text())


def test_overrides_are_toml_or_a_bare_word() -> None:
    config = load_config(
        "tiny",
        [
            "optimizer.peak_lr=1e-4",
            "compute.precision=bfloat16",
            "model.swa_layers=[0]",
            "data.weights.web=3",
            "seed=7",
        ],
    )
    assert config.optimizer.peak_lr == 1e-4
    assert config.compute.precision == "bfloat16"
    assert config.model.swa_layers == (0,)
    assert config.data.weights == {"web": 3.0}
    assert config.seed == 7


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "optimiser.peak_lr=1",
            "expected a field of the config, got 'optimiser'; did you mean 'optimizer'?",
        ),
        (
            "optimizer.peak_rl=1",
            r"expected a field of \[optimizer\], got 'peak_rl'; did you mean 'peak_lr'?",
        ),
        ("optimizer.peak_lr=high", "optimizer.peak_lr: expected a number, got 'high'; mend it"),
        ("schedule.steps=1.5", "schedule.steps: expected an integer, got 1.5"),
        ("compute.compile=1", "compute.compile: expected true or false, got 1"),
        ("compute.precision=fp8", "compute.precision: expected one of 'bfloat16', 'float32', got"),
        ("model.swa_layers=3", "model.swa_layers: expected a list, got 3"),
        ("data=3", "data: expected a table, got 3"),
        ("optimizer.peak_lr=0", "optimizer.peak_lr: expected more than 0, got 0"),
        ("data.rows_per_step=0", "data.rows_per_step: expected more than 0, got 0"),
        ("schedule.warmup=30", "warmup [+] decay within the steps, got 30 [+] 12 of 40"),
        ("data.sequence_length=128", "at most model.max_position_embeddings = 64, got 128"),
        ("schedule.short_until=3", "expected the tokens of a short row, as short_until is 3"),
        ("seed.x=1", "--set seed.x=1: expected a table at 'seed', got 0"),
    ],
)
def test_errors_name_the_key_and_what_to_do(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config("tiny", [override])


def test_an_override_is_a_key_and_a_value() -> None:
    with pytest.raises(RequestError, match="--set: expected section.key=value, got 'peak_lr'"):
        load_config("tiny", ["peak_lr"])


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[model]\nhidden_size = 8\n")
    with pytest.raises(ConfigError, match=r"run\.toml: the config: expected data, schedule, found"):
        load_config(path)
    path.write_text("[model\n")
    with pytest.raises(ConfigError, match=r"run\.toml: expected TOML, got: "):
        load_config(path)
    with pytest.raises(ConfigError, match=r"nothing: expected a TOML file or one of laneformer_"):
        load_config("nothing")


def test_differences_are_named_by_their_keys() -> None:
    config = load_config("tiny")
    other = replace(config, seed=1, data=replace(config.data, weights={"web": 1.0}))
    assert differences(config, other) == {
        "data.weights": ({}, None),
        "data.weights.web": (None, 1.0),
        "seed": (0, 1),
    }


def test_rows_are_shared_evenly_or_refused() -> None:
    config: RunConfig = load_config("tiny")
    assert config.rows_per_process(4) == 2
    with pytest.raises(ConfigError, match="a multiple of the 3 processes, got 8"):
        config.rows_per_process(3)
