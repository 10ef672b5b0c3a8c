"""GPT-OSS: its published config, and what one may not say."""

import math
from typing import Any

import pytest

from monolane.errors import ConfigError
from monolane.model import (
    Experts,
    Rotary,
    YarnScaling,
    parse_config,
)

from .spelled_families import spelled


def test_gpt_oss_is_read_as_it_is_published() -> None:
    """The fields of openai/gpt-oss-20b that say something of the arithmetic."""
    config = parse_config(
        {
            "model_type": "gpt_oss",
            "attention_bias": True,
            "eos_token_id": 200002,
            "experts_per_token": 4,
            "head_dim": 64,
            "hidden_act": "silu",
            "hidden_size": 2880,
            "initial_context_length": 4096,
            "intermediate_size": 2880,
            "layer_types": ["sliding_attention", "full_attention"] * 12,
            "max_position_embeddings": 131072,
            "num_attention_heads": 64,
            "num_experts_per_tok": 4,
            "num_hidden_layers": 24,
            "num_key_value_heads": 8,
            "num_local_experts": 32,
            "pad_token_id": 199999,
            "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"},
            "rms_norm_eps": 1e-05,
            "rope_scaling": {
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 32.0,
                "original_max_position_embeddings": 4096,
                "rope_type": "yarn",
                "truncate": False,
            },
            "rope_theta": 150000,
            "sliding_window": 128,
            "swiglu_limit": 7.0,
            "tie_word_embeddings": False,
            "vocab_size": 201088,
        }
    )
    assert config.experts == Experts(32, 4, 2880, normalised=True, biases=True)
    assert config.stored_dtype == "mxfp4"
    stretch = YarnScaling(32.0, 4096, 0.1 * math.log(32) + 1, 32.0, 1.0, truncate=False)
    assert config.rotary == Rotary(150000.0, "half", stretch)
    assert config.num_parameters == 20914757184  # as its card says: 21 billion
    unsaid = spelled("gpt_oss", rope_theta=150000, intermediate_size=2880)
    assert parse_config(unsaid).rotary == config.rotary


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"swiglu_alpha": 1.5}, "swiglu_alpha: expected 1.702, got 1.5; executors have this one"),
        ({"swiglu_limit": 10}, "swiglu_limit: expected 7.0, got 10; executors have this one"),
        ({"hidden_act": "gelu"}, "hidden_act: expected one of 'silu'"),
    ],
)
def test_what_gpt_oss_may_not_say(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(spelled("gpt_oss", **fields))
