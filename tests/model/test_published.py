"""Configs as dense families publish them: what they mean, and what comes of damaged ones."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from monolane.errors import ConfigError
from monolane.model import (
    LinearScaling,
    QkNorm,
    Role,
    Rotary,
    parse_config,
    render_config,
    tensor_specs,
)

from .spelled_families import DENSE, LLAMA3, SIZES, YARN, spelled

# config.json of HuggingFaceTB/SmolLM3-3B, allenai/OLMo-2-1124-7B, google/gemma-3-1b-it and
# google/gemma-3-4b-it, without what says nothing of the decoder.
SMOLLM3: dict[str, Any] = {
    "model_type": "smollm3",
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": 128012,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "layer_types": ["full_attention"] * 36,
    "max_position_embeddings": 65536,
    "max_window_layers": 28,
    "mlp_bias": False,
    "no_rope_layer_interval": 4,
    "no_rope_layers": [1, 1, 1, 0] * 9,
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 4,
    "pad_token_id": 128004,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 5000000.0,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 128256,
}
OLMO2: dict[str, Any] = {
    "model_type": "olmo2",
    "attention_bias": False,
    "eos_token_id": 100257,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pad_token_id": 100277,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 500000,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "vocab_size": 100352,
}
GEMMA3_1B: dict[str, Any] = {
    "model_type": "gemma3_text",
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "bos_token_id": 2,
    "cache_implementation": "hybrid",
    "eos_token_id": [1, 106],
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16",
    "vocab_size": 262144,
}
GEMMA3_4B: dict[str, Any] = {
    "model_type": "gemma3",
    "boi_token_index": 255999,
    "eos_token_id": [1, 106],
    "mm_tokens_per_image": 256,
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
}


def test_smollm3_as_published() -> None:
    config = parse_config(SMOLLM3)
    turned = ["main", "main", "main", "none"] * 9
    assert [layer.rotary for layer in config.layers] == turned
    assert {layer.window for layer in config.layers} == {None}
    assert config.rotary == Rotary(5e6, "half")
    assert (config.head_dim, config.tie_embeddings) == (128, True)
    assert config.num_parameters == 3_075_098_624
    implied = parse_config(SMOLLM3 | {"no_rope_layers": None, "rope_theta": None})
    assert [layer.rotary for layer in implied.layers] == turned
    assert implied.rotary.theta == 2e6
    assert parse_config(render_config(config)) == config


def test_olmo2_as_published() -> None:
    config = parse_config(OLMO2)
    assert (config.norm_before, config.norm_after, config.qk_norm) == (False, True, QkNorm.ALL)
    assert config.num_parameters == 7_298_617_344
    names = {spec.role: (spec.name, spec.shape) for spec in tensor_specs(config) if spec.layer == 1}
    layer = "model.layers.1."
    assert names[Role.Q_NORM] == (layer + "self_attn.q_norm.weight", (4096,))
    assert names[Role.POST_ATTENTION_NORM] == (layer + "post_attention_layernorm.weight", (4096,))
    assert names[Role.POST_MLP_NORM] == (layer + "post_feedforward_layernorm.weight", (4096,))
    assert Role.ATTENTION_NORM not in names
    assert Role.MLP_NORM not in names


def test_gemma3_as_published() -> None:
    config = parse_config(GEMMA3_1B)
    kinds = [(layer.rotary, layer.window) for layer in config.layers]
    assert kinds[:7] == [("local", 512)] * 5 + [("main", None), ("local", 512)]
    assert (config.rotary, config.local_rotary) == (Rotary(1e6, "half"), Rotary(1e4, "half"))
    assert config.embedding_scale == 34.0  # the root of 1152 is 33.94; bfloat16 has 8 bits
    assert (config.query_scale, config.tie_embeddings) == (None, True)
    assert config.num_parameters == 999_885_952
    assert config.eos_ids == (1, 106)


def test_gemma3_with_a_vision_tower() -> None:
    config = parse_config(GEMMA3_4B)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 4, 256)
    assert (config.vocab_size, config.max_positions) == (262208, 131072)
    assert config.rotary == Rotary(1e6, "half", LinearScaling(8.0))
    assert config.local_rotary == Rotary(1e4, "half")
    assert (config.eos_ids, config.dtype) == ((1, 106), "bfloat16")
    assert {layer.window for layer in config.layers} == {1024, None}
    assert config.num_parameters == 3_880_263_168
    assert {spec.name.split(".")[0] for spec in tensor_specs(config)} == {"language_model"}
    assert parse_config(render_config(config)) == config


JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
STRETCHES = st.dictionaries(
    st.sampled_from([*LLAMA3, *YARN, "beta_fast", "beta_slow", "mscale", "truncate", "rope_theta"]),
    st.sampled_from(["linear", "llama3", "yarn"]) | st.floats(0, 10) | JSON_VALUES,
)
FIELDS = (
    *{name: None for fields in (SIZES, SMOLLM3, OLMO2, GEMMA3_1B) for name in fields},
    "rope_parameters",
    "text_config",
)


@given(
    kind=st.sampled_from(DENSE),
    changes=st.dictionaries(
        st.sampled_from([name for name in FIELDS if name != "model_type"]),
        st.integers(-1, 9)
        | JSON_VALUES
        | STRETCHES
        | st.fixed_dictionaries({"full_attention": STRETCHES})
        | st.lists(st.sampled_from([0, 1, "full_attention", "sliding_attention"]), min_size=3),
        min_size=1,
        max_size=4,
    ),
)
def test_fuzzed_configs_are_read_and_written_or_refused(kind: str, changes: dict[str, Any]) -> None:
    try:
        config = parse_config(spelled(kind, **changes))
    except ConfigError:
        return
    with np.errstate(all="ignore"):  # what a base of 1e-30 makes of a model is its own affair
        config.rotary.frequencies(config.head_dim)
    assert parse_config(render_config(config)) == config
