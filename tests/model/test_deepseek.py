"""DeepSeek and Kimi: published configs, what one may not say, and what goes with latents."""

import math
from dataclasses import replace
from typing import Any

import pytest

from monolane.errors import ConfigError
from monolane.model import (
    Experts,
    Latent,
    QkNorm,
    Rotary,
    YarnScaling,
    parse_config,
)

from .spelled_families import LLAMA3, round_trip, spelled


def test_kimi_k2_is_read_as_it_is_published() -> None:
    """The fields of moonshotai/Kimi-K2-Instruct that say something of the arithmetic."""
    config = parse_config(
        {
            "model_type": "kimi_k2",
            "attention_bias": False,
            "eos_token_id": 163585,
            "first_k_dense_replace": 1,
            "hidden_act": "silu",
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "kv_lora_rank": 512,
            "max_position_embeddings": 131072,
            "moe_intermediate_size": 2048,
            "moe_layer_freq": 1,
            "n_group": 1,
            "n_routed_experts": 384,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_attention_heads": 64,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 61,
            "num_key_value_heads": 64,
            "num_nextn_predict_layers": 0,
            "q_lora_rank": 1536,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "rms_norm_eps": 1e-06,
            "rope_theta": 50000.0,
            "rope_scaling": {
                "beta_fast": 1.0,
                "beta_slow": 1.0,
                "factor": 32.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096,
                "type": "yarn",
            },
            "routed_scaling_factor": 2.827,
            "scoring_func": "sigmoid",
            "tie_word_embeddings": False,
            "topk_group": 1,
            "topk_method": "noaux_tc",
            "v_head_dim": 128,
            "vocab_size": 163840,
        }
    )
    assert config.latent == Latent(rank=512, query_rank=1536, plain=128, turned=64, value=128)
    assert config.experts == Experts(
        384,
        8,
        2048,
        normalised=True,
        scores="sigmoid",
        corrected=True,
        group_best=2,
        scale=2.827,
        shared=2048,
    )
    assert [layer.experts for layer in config.layers] == [False] + [True] * 60
    assert config.rotary == Rotary(50000.0, scaling=YarnScaling(32.0, 4096, 1.0, 1.0))
    assert config.query_scale == pytest.approx(192**-0.5 * (0.1 * math.log(32) + 1) ** 2)
    assert config.num_parameters == 1026408232448  # as its card says: 1 T
    attention = config.attention(0)
    cached = (attention.cached_heads, attention.cached_width, attention.cached_lists)
    assert cached == (1, 576, 1)
    assert round_trip(config) == replace(config, family="deepseek_v3")


def test_deepseek_v2_lite_is_read_as_it_is_published() -> None:
    config = parse_config(
        {
            "model_type": "deepseek_v2",
            "attention_bias": False,
            "first_k_dense_replace": 1,
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "kv_lora_rank": 512,
            "max_position_embeddings": 163840,
            "moe_intermediate_size": 1408,
            "moe_layer_freq": 1,
            "n_group": 1,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "norm_topk_prob": False,
            "num_attention_heads": 16,
            "num_experts_per_tok": 6,
            "num_hidden_layers": 27,
            "num_key_value_heads": 16,
            "q_lora_rank": None,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "rope_scaling": {
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 40,
                "mscale": 0.707,
                "mscale_all_dim": 0.707,
                "original_max_position_embeddings": 4096,
                "type": "yarn",
            },
            "rope_theta": 10000,
            "routed_scaling_factor": 1.0,
            "scoring_func": "softmax",
            "topk_group": 1,
            "topk_method": "greedy",
            "v_head_dim": 128,
            "vocab_size": 102400,
        }
    )
    assert config.latent == Latent(rank=512, query_rank=None, plain=128, turned=64, value=128)
    assert config.experts == Experts(64, 6, 1408, normalised=False, shared=2816)
    assert config.num_parameters == 15706484224  # as its card says: 15.7 billion
    assert config.rotary.amplitude == 1
    assert round_trip(config) == config


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("deepseek_v3", {"attention_bias": True}, "attention_bias: expected false"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func: expected one of 'sigmoid'"),
        ("deepseek_v3", {"topk_method": "greedy"}, "topk_method: expected one of 'noaux_tc'"),
        ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq: expected 1"),
        ("deepseek_v3", {"qk_rope_head_dim": 7}, "expected an even part that is turned"),
        ("deepseek_v3", {"kv_lora_rank": 0}, "kv_lora_rank: expected an integer"),
        ("deepseek_v3", {"rope_scaling": LLAMA3}, "'default', 'yarn', got 'llama3'"),
        ("deepseek_v3", {"first_k_dense_replace": 0, "n_group": 3}, "groups that divides 256"),
        ("deepseek_v3", {"first_k_dense_replace": 0, "topk_group": 9}, "1 to 8 chosen groups"),
        (
            "deepseek_v3",
            {"first_k_dense_replace": 0, "n_group": 64, "topk_group": 1},
            "at most 4 chosen for a token, of 1 groups of 4, got 8",
        ),
        (
            "deepseek_v3",
            {"first_k_dense_replace": 0, "n_group": 256, "topk_group": 8},
            "1 to 1 of a group to count",
        ),
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob: expected false"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method: expected one of 'greedy'"),
        ("deepseek_v2", {"topk_method": "group_limited_greedy"}, "n_group: expected an integer"),
    ],
)
def test_what_deepseek_may_not_say(kind: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(spelled(kind, **fields))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 8}, "latent: expected head_dim 192 and num_kv_heads 8"),
        ({"qkv_bias": True}, "qkv_bias: expected False where attention is latent"),
        ({"qk_norm": QkNorm.HEAD}, "qk_norm: expected None where attention is latent"),
        ({"num_lanes": 2}, "latent: expected one lane, got 2"),
    ],
)
def test_what_does_not_go_with_latents(change: dict[str, Any], message: str) -> None:
    config = parse_config(spelled("deepseek_v3"))
    with pytest.raises(ConfigError, match=message):
        replace(config, **change)
