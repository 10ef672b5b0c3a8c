from dataclasses import replace
from typing import Any

import pytest

from monolane.errors import ConfigError
from monolane.hf import LaneformerConfig, LaneformerForCausalLM
from monolane.train import DemoRecipe


def test_the_shipped_shape_fits_10_mb_in_bf16() -> None:
    import torch

    with torch.device("meta"):
        model = LaneformerForCausalLM(LaneformerConfig(**DemoRecipe().config_fields()))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert 3_000_000 <= parameters <= 6_000_000
    assert 2 * parameters < 10_000_000 - 50_000  # the header of the file needs a few kB


def test_the_last_layers_see_the_whole_context() -> None:
    config = LaneformerConfig(**DemoRecipe().config_fields())
    assert config.layer_types == ["sliding_attention"] * 4 + ["full_attention"] * 2
    assert (config.num_lanes, config.broadcast_delay, config.use_early_comm) == (8, 2, False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_attention_heads": 12}, "num_attention_heads: expected a multiple of num_lanes = 8"),
        ({"vocab_size": 2047}, "vocab_size: expected a multiple of num_lanes = 8, got 2047"),
        ({"vocab_size": 256}, "vocab_size: expected at least 512, got 256"),
        ({"windowed_layers": 7}, "windowed_layers: expected at most 6 layers, got 7"),
        ({"tokens_per_step": 1000}, "tokens_per_step: expected a multiple of context = 1024"),
        ({"warmup_share": 1.0}, "warmup_share: expected less than 1, got 1.0"),
        (
            {"warmup_share": 0.6, "decay_share": 0.6},
            "expected warmup . decay within the steps, got 600 . 600",
        ),
        ({"peak_lr": 0.0}, "peak_lr: expected more than 0, got 0.0"),
        (
            {"precision": "float16"},
            "precision: expected one of .auto., .float32., .bfloat16., got 'float16'",
        ),
        ({"optimiser": "sgd"}, "optimiser: expected one of 'adamw', 'muon', got 'sgd'"),
    ],
)
def test_a_recipe_refuses(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DemoRecipe(**fields)


def test_a_recipe_survives_a_checkpoint() -> None:
    recipe = replace(DemoRecipe(), seed=7, peak_lr=1e-3)
    assert DemoRecipe.from_dict(recipe.to_dict()) == recipe
    with pytest.raises(ConfigError, match="expected a field of .*, got 'colour'"):
        DemoRecipe.from_dict({**recipe.to_dict(), "colour": 1})
