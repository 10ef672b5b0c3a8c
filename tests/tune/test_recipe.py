from pathlib import Path

import pytest

from monolane.errors import ConfigError
from monolane.tune import LoraRecipe, SftRecipe, read_recipe, shipped_recipes


def test_the_recipe_of_the_model_card() -> None:
    """~210 M tokens in 200 steps of ~1.05 M tokens."""
    recipe = read_recipe("laneformer_2b_sft")
    assert recipe.context == 4096
    assert recipe.steps == 200
    tokens = recipe.rows_per_step * recipe.context
    assert tokens == 1_048_576
    assert abs(recipe.steps * tokens - 210e6) < 1e6


def test_every_shipped_recipe_reads() -> None:
    assert set(shipped_recipes()) == {"demo_sft", "laneformer_2b_sft"}
    for name in shipped_recipes():
        assert SftRecipe.from_dict(read_recipe(name).to_dict()) == read_recipe(name)


def test_a_recipe_with_lora(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("steps = 3\n[lora]\nrank = 4\nmatrices = ['wq', 'w2']\n")
    assert read_recipe(path) == SftRecipe(steps=3, lora=LoraRecipe(rank=4, matrices=("wq", "w2")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "stepz = 3",
            r"mine.toml: expected a field of the config, got 'stepz'; did you mean 'steps'",
        ),
        ("steps = 0.5", "steps: expected an integer, got 0.5"),
        ("steps = true", "steps: expected an integer, got True"),
        ("packing = 1", "packing: expected true or false, got 1"),
        ("peak_lr = 'fast'", "peak_lr: expected a number, got 'fast'"),
        ("peak_lr = 0", "peak_lr: expected more than 0, got 0"),
        ("rows_per_step = 3\nrows_at_once = 2", "a multiple of rows_at_once"),
        ("too_long = 'keep'", "too_long: expected one of 'refuse', 'drop', 'cut', got 'keep'"),
        ("warmup_share = 0.9", "expected warmup . decay within"),
        ("lora = 8", "lora: expected a table"),
        ("[lora]\nrank = 0", "lora.rank: expected more than 0, got 0"),
        ("[lora]\nmatrices = ['wx']", r"lora.matrices\[0\]: expected one of 'wq', .* got 'wx'"),
        ("= 3", "expected TOML, got"),
    ],
)
def test_a_wrong_field_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_recipe(path)


def test_a_recipe_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="a TOML file or one of demo_sft, laneformer_2b_sft"):
        read_recipe("no_such")
