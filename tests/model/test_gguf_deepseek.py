"""Metadata of Mistral 4, DeepSeek-V3.2, GLM-5 and DeepSeek-V4 as a config, and what is refused."""

from typing import Any

import numpy as np
import pytest

from monolane.errors import ConfigError
from monolane.model import ModelConfig, Rotary, Temperature, YarnScaling
from monolane.model.families import parse_gguf
from monolane.ops import Index

from .test_gguf_config import LATENT, SIZES

SMALL = SIZES | LATENT | {"block_count": 4}
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 512,
    "rope.scaling.yarn_log_multiplier": 0.1,
}
INDEX = {
    "attention.indexer.head_count": 5,
    "attention.indexer.key_length": 10,
    "attention.indexer.top_k": 7,
}
V4: dict[str, Any] = {
    **INDEX,
    "block_count": 3,
    "context_length": 4096,
    "embedding_length": 64,
    "embedding_length_out": 256,
    "attention.head_count": 8,
    "attention.head_count_kv": 1,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.key_length": 16,
    "attention.value_length": 16,
    "attention.q_lora_rank": 22,
    "attention.sliding_window": 9,
    "attention.output_group_count": 2,
    "attention.output_lora_rank": 11,
    "attention.compress_ratios": np.array([0, 4, 128], np.int32),
    "attention.compress_rope_freq_base": 160000.0,
    "rope.dimension_count": 8,
    "rope.freq_base": 10000.0,
    "hyper_connection.count": 4,
    "hyper_connection.sinkhorn_iterations": 20,
    "hyper_connection.epsilon": 1e-6,
    "hash_layer_count": 2,
    "expert_count": 12,
    "expert_used_count": 3,
    "expert_feed_forward_length": 26,
    "expert_shared_count": 1,
    "expert_gating_func": 4,
    "expert_weights_scale": 1.5,
    "expert_weights_norm": True,
    "swiglu_clamp_exp": np.full(3, 0.7, np.float32),
    "swiglu_clamp_shexp": np.full(3, 0.7, np.float32),
}


def parse(architecture: str, said: dict[str, Any], **changes: Any) -> ModelConfig:
    """Read metadata with changes; ``None`` takes a field away."""
    said = said | {name.replace("__", "."): value for name, value in changes.items()}
    raw = {f"{architecture}.{key}": x for key, x in said.items() if x is not None}
    given = {"vocab_size": 96, "tie_word_embeddings": False}
    return parse_gguf({"general.architecture": architecture, **raw}, given, None, "x.gguf")


def test_how_fast_queries_grow_is_what_a_file_says_or_what_the_published_model_has() -> None:
    stretched = SMALL | YARN
    assert parse("mistral4", stretched).attention_temperature == Temperature(0.1, 512)
    said = parse("mistral4", stretched, attention__temperature_scale=0.3)
    assert said.attention_temperature == Temperature(0.3, 512)
    assert parse("mistral4", stretched, attention__temperature_length=512).num_layers == 4
    plain = parse("mistral4", SMALL)
    assert (plain.attention_temperature, plain.rotary) == (None, Rotary(1e4, "interleaved"))
    assert plain.experts is not None
    assert (plain.experts.scores, plain.experts.corrected) == ("softmax", False)


def test_an_index_has_the_sizes_that_a_file_says_and_pairs_as_its_family() -> None:
    for architecture, style in (("deepseek32", "half"), ("glm-dsa", "interleaved")):
        config = parse(architecture, SMALL | INDEX)
        assert config.index == Index(heads=5, width=10, chosen=7, style=style)
        assert config.rotary.style == "interleaved"
        assert [x.experts for x in config.layers] == [False, True, True, True]
        assert config.experts is not None
        assert (config.experts.scores, config.experts.group_best) == ("sigmoid", 2)
        assert parse(architecture, SMALL | INDEX, expert_gating_func=2) == config


def test_layers_have_indexes_of_their_own_or_an_earlier_one_s() -> None:
    said = SMALL | INDEX

    def seen(**changes: Any) -> list[int | None]:
        return [layer.index_of for layer in parse("glm-dsa", said, **changes).layers]

    own = np.array([True, False, False, True])
    assert seen(attention__indexer__types=own) == [None, 0, 0, None]
    assert seen() == [None] * 4
    # As llama.cpp has it: so long a context is GLM-5.2's.
    assert seen(context_length=1 << 20, block_count=9) == [
        *(None, None, None, 2, 2, 2),
        *(None, 6, 6),
    ]
    ahead = seen(attention__indexer__types=own[:3], nextn_predict_layers=1)
    assert ahead == [None, 0, 0]


def test_a_deepseek_v4_is_read_as_its_weights_were_written() -> None:
    config = parse("deepseek4", V4 | {k: x for k, x in YARN.items() if "log" not in k})
    assert config.rotary == Rotary(160000.0, "interleaved", YarnScaling(4.0, 512, 1.0))
    assert config.local_rotary == Rotary(10000.0, "interleaved")
    assert [layer.hashed for layer in config.layers] == [True, True, False]
    assert config.experts is not None
    assert (config.experts.limit, config.experts.scale) == (0.7, 1.5)
    assert parse("deepseek4", V4, swiglu_clamp_shexp=None) == parse("deepseek4", V4)
    assert parse("deepseek4", V4, embedding_length_out=None) == parse("deepseek4", V4)
    # Lists are of all blocks, also of those that predict further ahead.
    longer = V4 | {"attention.compress_ratios": np.array([0, 4, 128, 0])}
    longer |= {"block_count": 4, "nextn_predict_layers": 1}
    assert parse("deepseek4", longer) == parse("deepseek4", V4)


@pytest.mark.parametrize(
    ("architecture", "said", "message"),
    [
        ("mistral4", {"expert_gating_func": 2}, "mistral4.expert_gating_func: expected 1, got 2"),
        ("mistral4", {"expert_group_count": 2}, "mistral4.expert_group_count: expected 1, got 2"),
        ("mistral4", {"attention.kv_lora_rank": None}, "kv_lora_rank: expected this field"),
        (
            "mistral4",
            YARN | {"attention.temperature_length": 64},
            "mistral4.attention.temperature_length: expected 512, got 64",
        ),
        ("deepseek32", {"expert_gating_func": 1}, "expert_gating_func: expected 2, got 1"),
        ("deepseek32", {"attention.indexer.top_k": None}, "indexer.top_k: expected this field"),
        (
            "deepseek32",
            {"attention.indexer.block_size": 4},
            "deepseek32.attention.indexer.block_size: this field of the metadata is not known",
        ),
        (
            "glm-dsa",
            {"attention.indexer.types": np.array([True])},
            "glm-dsa.attention.indexer.types: expected a list of 4 of true or false",
        ),
        (
            "glm-dsa",
            {"attention.indexer.types": np.array([False, True, True, True])},
            "glm-dsa.attention.indexer.types: .* the first 'full'",
        ),
        ("deepseek4", {"expert_gating_func": 2}, "expert_gating_func: expected 4, got 2"),
        ("deepseek4", {"hash_layer_count": None}, "hash_layer_count: expected this field"),
        ("deepseek4", {"embedding_length_out": 64}, "embedding_length_out: expected 256, got 64"),
        (
            "deepseek4",
            {"attention.compress_ratios": np.array([0, 4, 8])},
            "deepseek4.attention.compress_ratios: .* 0, 4 or 128",
        ),
        ("deepseek4", {"attention.compress_ratios": 4}, "compress_ratios: expected a list"),
        (
            "deepseek4",
            {"swiglu_clamp_exp": np.array([0.7, 0.8, 0.7], np.float32)},
            "swiglu_clamp_exp: expected one limit of all layers",
        ),
        (
            "deepseek4",
            {"swiglu_clamp_shexp": np.full(3, 0.8, np.float32)},
            "swiglu_clamp_exp: expected one limit of all layers",
        ),
        ("deepseek4", {"swiglu_clamp_exp": "x"}, "swiglu_clamp_exp: expected a number above zero"),
        ("deepseek4", {"expert_weights_norm": False}, "expert_weights_norm: expected true"),
    ],
)
def test_what_is_missing_or_wrong_is_named(
    architecture: str, said: dict[str, Any], message: str
) -> None:
    usual = {"mistral4": SMALL, "deepseek4": V4}.get(architecture, SMALL | INDEX)
    with pytest.raises(ConfigError, match=message):
        parse(architecture, usual | said)
