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
        ({"num_attention_heads": 12}, "num_attention_heads must be a multiple of num_lanes 8"),
        ({"vocab_size": 2047}, "vocab_size must be a multiple of num_lanes 8, got 2047"),
        ({"vocab_size": 256}, "vocab_size must be 512 to 65536"),
        ({"windowed_layers": 7}, "windowed_layers must be 0 to 6, got 7"),
        ({"tokens_per_step": 1000}, "tokens_per_step must be a multiple of context"),
        ({"warmup_share": 1.0}, r"warmup_share must be in \[0, 1\), got 1.0"),
        ({"warmup_share": 0.6, "decay_share": 0.6}, "at most 1, got 0.6 [+] 0.6"),
        ({"peak_lr": 0.0}, "peak_lr > 0"),
        ({"precision": "float16"}, "precision must be auto, float32 or bfloat16, got 'float16'"),
        ({"optimiser": "sgd"}, "optimiser must be adamw or muon, got 'sgd'"),
    ],
)
def test_a_recipe_refuses(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DemoRecipe(**fields)


def test_a_recipe_survives_a_checkpoint() -> None:
    recipe = replace(DemoRecipe(), seed=7, peak_lr=1e-3)
    assert DemoRecipe.from_dict(recipe.to_dict()) == recipe
    with pytest.raises(ConfigError, match=r"unknown fields \['colour'\]"):
        DemoRecipe.from_dict({**recipe.to_dict(), "colour": 1})
