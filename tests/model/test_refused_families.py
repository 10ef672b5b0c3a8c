"""Configs that are refused, and what a config.json cannot say."""

from dataclasses import replace
from typing import Any

import pytest

from monolane.errors import ConfigError
from monolane.model import (
    NOW,
    Head,
    LayerConfig,
    QkNorm,
    Rotary,
    Temperature,
    parse_config,
    render_config,
)

from .spelled_families import (
    LLAMA3,
    SIZES,
    YARN,
    spelled,
)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: expected 1"),
        (
            "gemma4_text",
            {"use_bidirectional_attention": "all"},
            "use_bidirectional_attention: expected one of 'vision', got 'all'",
        ),
        (
            "gemma4_unified",
            {"hidden_size_per_layer_input": 8},
            "hidden_size_per_layer_input: expected 0, got 8",
        ),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention: expected f"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv: expected null, got 8.0"),
        ("dots1", {"mlp_layer_types": ["sparse"] * 3}, "mlp_layer_types: expected null"),
        ("dots1", {"n_routed_experts": None}, "n_routed_experts: expected an integer"),
        ("dots1", {"moe_layer_freq": 2}, "moe_layer_freq: expected 1, got 2"),
        ("solar_open", {"use_qk_norm": True}, "use_qk_norm: expected false"),
        ("solar_open", {"first_k_dense_replace": 1}, "first_k_dense_replace: expected 0, got 1"),
        ("solar_open", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: expected 1"),
        ("youtu", {"attention_bias": True}, "attention_bias: expected false"),
        ("iquestcoder", {"clip_qkv": 8.0}, "clip_qkv: expected null, got 8.0"),
        ("iquestcoder", {"use_sliding_window": True}, "use_sliding_window: expected false"),
        ("hyperclovax", {"mlp_bias": True}, "mlp_bias: expected false"),
        ("hyperclovax", {"logits_scaling": 0}, "logits_scaling: expected a number above zero"),
        ("mellum", {"rope_theta": 1e4}, "rope_theta: expected null, got 10000.0"),
        ("mellum", {"rope_scaling": YARN}, "rope_scaling: expected null"),
        ("mellum", {"rope_parameters": YARN}, "rope_parameters: expected objects 'full_attention'"),
        ("mellum", {"mlp_layer_types": ["dense", "sparse"]}, "mlp_layer_types: expected a list of"),
        ("vaultgemma", {"hidden_activation": "relu"}, "hidden_activation: expected one of 'gelu"),
        ("flex_olmo", {"hidden_act": "gelu"}, "hidden_act: expected one of 'silu'"),
        ("arcee", {"mlp_bias": True}, "mlp_bias: expected false"),
        ("exaone", {"attention_bias": True}, "attention_bias: expected false"),
        ("cwm", {"mlp_bias": True}, "mlp_bias: expected false"),
        ("gemma4_unified_text", {"enable_moe_block": True}, "enable_moe_block: expected false"),
        ("lfm2", {"conv_bias": True}, "conv_bias: expected false"),
        ("lfm2", {"conv_L_cache": 65}, "conv: expected 1 to 64 taps, got 65"),
        (
            "lfm2",
            {"layer_types": ["conv", "rnn", "conv"]},
            "layer_types: expected a list",
        ),
        ("qwen3_next", {"partial_rotary_factor": 1.5}, "rotary: expected a part of a head above 0"),
        ("qwen3_next", {"head_dim": 6, "partial_rotary_factor": 0.5}, "expected an even part of a"),
        ("qwen3_next", {"linear_num_value_heads": 24}, "delta: expected a multiple of 16 value"),
        ("qwen3_next", {"linear_conv_kernel_dim": 65}, "delta: expected a kernel of 1 to 64"),
        ("qwen3_next", {"linear_key_head_dim": 0}, "linear_key_head_dim: expected an integer"),
        ("qwen3_next", {"attention_bias": True}, "attention_bias: expected false"),
        (
            "qwen3_5",
            {"linear_num_value_heads": 24},
            "delta: expected a multiple of 16 value",
        ),
        ("qwen3_5_moe_text", {"attention_bias": True}, "attention_bias: expected false"),
        ("mistral3", {"model_type": "mistral5"}, "model_type: expected one of 'ministral3', 'mis"),
        (
            "ministral3",
            {"rope_parameters": YARN | {"llama_4_scaling_beta": -1}},
            "llama_4_scaling_beta: expected a number above zero",
        ),
        ("exaone_moe", {"mlp_layer_types": ["dense"]}, "mlp_layer_types: expected a list of 3"),
        ("exaone_moe", {"sliding_window_pattern": "LGLG"}, "sliding_window_pattern: expected an"),
        ("hunyuan_v1_moe", {"num_experts": [4, 8]}, "num_experts: expected an integer"),
        (
            "hunyuan_v1_dense",
            {"rope_scaling": {"type": "linear", "alpha": 2.0}},
            "type: expected one of 'dynamic'",
        ),
        (
            "phi3",
            {"rope_scaling": {"type": "su"}},
            "short_factor: expected a list of numbers above",
        ),
        (
            "phi3",
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [0]}},
            "long_factor: expected a number above zero",
        ),
        (
            "granitemoehybrid",
            {"mamba_n_heads": 100},
            "mamba_n_heads: expected a number of heads of 1 that are 128 wide, got 100",
        ),
        ("granitemoehybrid", {"mamba_proj_bias": True}, "mamba_proj_bias: expected false"),
        ("bamba", {"time_step_limit": [1e-3, 0.1]}, "time_step_limit: expected null, or 0 to inf"),
        ("granitemoehybrid", {"position_embedding_type": "alibi"}, "expected one of 'rope', 'nope"),
        ("nemotron_h", {"hybrid_override_pattern": "M-x"}, "hybrid_override_pattern: expected a l"),
        ("nemotron_h", {"hybrid_override_pattern": None}, "layer_types: expected what each of up"),
        (
            "nemotron_h",
            {"hybrid_override_pattern": "ME", "moe_latent_size": 16},
            "moe_latent_size: expected null",
        ),
        ("nemotron_h", {"mlp_hidden_act": "silu"}, "mlp_hidden_act: expected one of 'relu2'"),
        ("falcon_h1", {"mamba_rms_norm": True}, "mamba_norm_before_gate: expected false"),
        ("falcon_h1", {"ssm_multipliers": [1.0]}, "ssm_multipliers: expected a list of 5"),
        ("falcon_h1", {"mlp_multipliers": [1.0, -1.0]}, "mlp_multipliers: expected a number above"),
        ("falcon_h1", {"projectors_bias": True}, "projectors_bias: expected false"),
        ("gemma2", {"attn_logit_softcapping": -1}, "attn_logit_softcapping: expected a number"),
        ("llama", {"rope_parameters": {"factor": 2.0, "rope_type": "dynamic"}}, "'yarn', got 'dyn"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "rope_scaling: factor: expected a number"),
        ("llama", {"rope_scaling": {"type": "yarn"}}, "rope_scaling: factor: expected a number"),
        (
            "llama",
            {"rope_scaling": YARN, "rope_parameters": LLAMA3},
            "rope_scaling: expected null or what rope_parameters says",
        ),
        (
            "llama",
            {"rope_scaling": YARN | {"beta_fast": 0.5}},
            "beta_fast to be at least beta_slow",
        ),
        ("llama", {"rope_scaling": YARN | {"beta_slow": 1e-7}}, "beta_slow from 1e-6 to 1e6 turns"),
        ("llama", {"rope_scaling": YARN, "rope_theta": 1.0}, "rope_theta above 1 with YaRN, got 1"),
        ("llama", {"rope_scaling": YARN | {"truncate": 1}}, "truncate: expected true or false"),
        ("llama", {"rope_scaling": YARN | {"mscale": -1}}, "mscale: expected a number above zero"),
        ("llama", {"rope_scaling": LLAMA3 | {"factor": "4"}}, "factor: expected a number"),
        ("llama", {"rope_parameters": {"full_attention": YARN}}, "all layers of this family turn"),
        ("laneformer", {"rope_scaling": YARN}, "'default', 'llama3', got 'yarn'"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers: expected a list of 3 numbers"),
        ("smollm3", {"no_rope_layers": [1, 0, 2]}, "1 with rotary, 0 without"),
        ("smollm3", {"no_rope_layers": [True] * 3}, "1 with rotary, 0 without"),
        ("smollm3", {"no_rope_layers": 3}, "1 with rotary, 0 without"),
        ("smollm3", {"no_rope_layer_interval": 0}, "no_rope_layer_interval: expected an integer"),
        (
            "smollm3",
            {"layer_types": ["sliding_attention"] * 3, "sliding_window": 9},
            "or set use_sliding_window",
        ),
        *(
            (
                "qwen2_moe",
                {"layer_types": ["full_attention", "sliding_attention", "full_attention"], **more},
                "layer_types: expected 'full_attention' only .* or set use_sliding_window",
            )
            for more in ({}, {"sliding_window": 0}, {"use_sliding_window": False})
        ),
        *(
            (
                kind,
                {"layer_types": types, "sliding_window": 9, "use_sliding_window": True},
                "layer_types: expected 'sliding_attention' of all layers, .* remove the one",
            )
            for kind in ("mixtral", "qwen3_moe")
            for types in (
                ["full_attention"] * 3,
                ["full_attention", "sliding_attention", "sliding_attention"],
            )
        ),
        ("smollm3", {"layer_types": 3}, "layer_types: expected a list"),
        ("mistral", {"attention_bias": True}, "attention_bias: expected false"),
        ("smollm3", {"mlp_bias": True}, "mlp_bias: expected false"),
        ("olmo2", {"hidden_act": "gelu"}, "hidden_act: expected one of 'silu'"),
        (
            "gemma3_text",
            {"final_logit_softcapping": 30.0},
            "final_logit_softcapping: expected null",
        ),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: expected null"),
        ("gemma3_text", {"hidden_activation": "silu"}, "one of 'gelu_pytorch_tanh', got 'silu'"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "sees what came before only"),
        ("gemma3_text", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar: expected a number"),
        ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern: expected an"),
        ("gemma3_text", {"rope_parameters": YARN}, "objects 'full_attention' and 'sliding_att"),
        (
            "gemma3_text",
            {"rope_scaling": YARN, "rope_parameters": {"full_attention": YARN}},
            "rope_scaling: expected null beside rope_parameters: full_attention",
        ),
        (
            "gemma3",
            {"rope_local_base_freq": "1e4"},
            "text_config: rope_local_base_freq: expected a",
        ),
    ],
)
def test_what_is_refused(kind: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(spelled(kind, **fields))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("olmo", "its norms have no scales"),
    ],
)
def test_families_that_are_refused_with_a_reason(kind: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"model_type: .* got '{kind}': {why}"):
        parse_config(SIZES | {"model_type": kind})


def test_a_vision_model_without_its_text_is_refused() -> None:
    for wrong in ({}, {"text_config": None}, {"text_config": 3}):
        with pytest.raises(ConfigError, match="text_config: expected an object"):
            parse_config({"model_type": "gemma3", **wrong})


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"norm_after": True}, "norm_after"),
        ({"qk_norm": QkNorm.HEAD}, "qk_norm"),
        ({"activation": "gelu_tanh"}, "activation"),
        ({"embedding_scale": 8.0}, "embedding_scale"),
        ({"query_scale": 0.5}, "query_scale"),
        ({"norm_offset": 1.0}, "norm_offset"),
        ({"norm_centred": True}, "norm_centred"),
        ({"norm_turned": True, "qk_norm": QkNorm.HEAD}, "qk_norm"),
        ({"score_cap": 50.0}, "score_cap"),
        ({"attention_temperature": Temperature(0.1, 64)}, "attention_temperature"),
        ({"local_rotary": Rotary(style="half")}, "local_rotary"),
        ({"layers": (LayerConfig(NOW, NOW, rotary="none"),) * 3}, "layers"),
        ({"head": Head.MEAN}, "head"),
    ],
)
def test_what_a_family_has_no_word_for_is_not_written(change: dict[str, Any], name: str) -> None:
    llama = parse_config(spelled("llama"))
    with pytest.raises(ConfigError, match=f"{name}: expected what a config.json of llama can say"):
        render_config(replace(llama, **change))
