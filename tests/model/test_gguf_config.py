"""A GGUF file's metadata as a config, in each family's keys, and what of it is refused."""

import math
from dataclasses import replace
from typing import Any

import gguf
import numpy as np
import pytest

from monolane.errors import ConfigError
from monolane.model import (
    Delta,
    Experts,
    Latent,
    LinearScaling,
    ModelConfig,
    PairScaling,
    QkNorm,
    Rotary,
    YarnScaling,
)
from monolane.model.families import FAMILIES, parse_gguf
from monolane.model.families._gguf import (
    _KEYS,
    _OLD_LINEAR,
    _SCALING,
    _SILENT,
    FUSED_EXPERTS,
    GGUF_NAMES,
)

SIZES: dict[str, Any] = {
    "block_count": 12,
    "context_length": 4096,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 8,
    "attention.head_count_kv": 4,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
LATENT: dict[str, Any] = {
    "attention.head_count_kv": 1,
    "attention.kv_lora_rank": 18,
    "attention.q_lora_rank": 22,
    "attention.key_length": 26,
    "attention.value_length": 18,
    "attention.key_length_mla": 24,
    "attention.value_length_mla": 12,
    "rope.dimension_count": 8,
    "leading_dense_block_count": 1,
    "expert_count": 12,
    "expert_used_count": 3,
    "expert_feed_forward_length": 26,
    "expert_shared_count": 2,
}


def metadata(architecture: str = "llama", **changes: Any) -> dict[str, Any]:
    """Metadata of a small model; ``None`` takes a field away."""
    said = SIZES | {name.replace("__", "."): value for name, value in changes.items()}
    found = {f"{architecture}.{key}": x for key, x in said.items() if x is not None}
    return {"general.architecture": architecture, **found}


def latent(**changes: Any) -> dict[str, Any]:
    """Metadata of a small DeepSeek, whose key and value heads are 24 and 12 wide."""
    return metadata("deepseek2", **LATENT | {"expert_gating_func": 2} | changes)


def delta(**changes: Any) -> dict[str, Any]:
    """Metadata of a small Qwen3-Next, whose heads are 16 wide."""
    said = {
        "attention.key_length": 16,
        "attention.value_length": 16,
        "rope.dimension_count": 4,
        "expert_count": 12,
        "expert_used_count": 3,
        "expert_feed_forward_length": 26,
        "expert_shared_feed_forward_length": 30,
        "ssm.conv_kernel": 4,
        "ssm.state_size": 10,
        "ssm.group_count": 3,
        "ssm.time_step_rank": 6,
        "ssm.inner_size": 42,
    }
    return metadata("qwen3next", **said | changes)


def parse(raw: dict[str, Any], divisors: tuple[float, ...] | None = None) -> ModelConfig:
    return parse_gguf(raw, {"vocab_size": 96, "tie_word_embeddings": True}, divisors, "x.gguf")


def test_names_and_keys_are_those_of_the_package() -> None:
    spellings = [family.gguf for family in FAMILIES if family.gguf is not None]
    architectures = [
        (spelling.architecture, spelling.experts, spelling.windowed, gating)
        for spelling in spellings
        for gating in spelling.gating or (None,)
    ]
    assert len(set(architectures)) == len(architectures)  # one family for each
    theirs = {name: place for place, name in gguf.MODEL_ARCH_NAMES.items()}
    all_names = (*GGUF_NAMES.values(), FUSED_EXPERTS)
    stems = set(map(stem, all_names))
    assert stems <= set(gguf.TENSOR_NAMES.values())
    newer = {"deepseek32", "deepseek4"}  # than its 0.19: tests/engine/test_gguf_deepseek.py
    for spelling in (x for x in spellings if x.architecture not in newer):
        kinds = gguf.MODEL_TENSORS[theirs[spelling.architecture]]
        of_config = "kv_lora" not in str(spelling.keys)
        own = spelling.names(parse(metadata() if of_config else latent())).values()
        named = stems | set(map(stem, own))
        used = {gguf.TENSOR_NAMES[kind] for kind in kinds}
        # Every tensor of the architecture has a role, but for frequencies, and layers that predict
        # further ahead.
        left = {name.format(bid="{i}") for name in used - named if ".nextn." not in name}
        # "dense_2" is of models of embeddings, "rope_factors" of the stretch "longrope".
        more = {"dense_2", "rope_factors_long", "rope_factors_short"}
        if spelling.architecture == "gemma4":  # of its mixtures, which this config has not
            more |= {"blk.{i}." + name for name in ("pre_ffw_norm_2", "post_ffw_norm_2")}
            more.add("blk.{i}.post_ffw_norm_1")
        if spelling.architecture == "kimi-linear":  # whose queries have no latent
            more |= {"blk.{i}." + name for name in ("attn_q_a", "attn_q_b", "attn_q_a_norm")}
        assert left <= {"rope_freqs", "blk.{i}.attn_rot_embd", *more}
    k = gguf.Keys
    known = {
        value
        for place in (k.LLM, k.Attention, k.Attention.Indexer, k.Rope, k.SSM, k.ShortConv, k.KDA)
        for value in vars(place).values()
        if isinstance(value, str)
    }
    ours = {*_KEYS, *_SCALING, *_SILENT} - {_OLD_LINEAR}  # which the package has forgotten
    for spelling in (x for x in spellings if x.architecture not in newer):
        ours |= {*spelling.keys, *spelling.optional}
    later = {f"{{arch}}.attention.{key}" for key in ("recurrent_layers", "indexer.types")}
    assert {f"{{arch}}.{key}" for key in ours} - known <= later


def stem(name: str) -> str:
    """A tensor's name as the package has it."""
    return name.format(i="{bid}").removesuffix(".weight").removesuffix(".bias")


def test_a_llamas_fields() -> None:
    config = parse(metadata(attention__key_length=16, rope__freq_base=5e5, vocab_size=96))
    assert (config.family, config.num_layers, config.num_lanes) == ("llama", 12, 1)
    assert (config.hidden_size, config.intermediate_size, config.head_dim) == (64, 96, 16)
    assert (config.num_heads, config.num_kv_heads, config.max_positions) == (8, 4, 4096)
    assert (config.norm_eps, config.tie_embeddings) == (1e-5, True)
    # llama.cpp's converter reorders the rows of q and k, so that neighbours turn together.
    assert config.rotary == Rotary(5e5, "interleaved")


def test_the_vocabulary_is_as_long_as_its_tokens() -> None:
    raw = metadata(vocab_size=96) | {
        "tokenizer.ggml.tokens": ["x"] * 90,
        "tokenizer.ggml.bos_token_id": 3,
        "tokenizer.ggml.eos_token_id": 4,
        "tokenizer.ggml.eot_token_id": 5,
        "tokenizer.ggml.eom_token_id": 4,
        "tokenizer.ggml.padding_token_id": 6,
    }
    config = parse(raw)
    assert config.vocab_size == 90
    assert (config.bos_id, config.eos_ids, config.pad_id) == (3, (4, 5), 6)


@pytest.mark.parametrize("pad", [90, -1, (1 << 32) - 1])
def test_a_padding_token_that_is_none_is_left_out(pad: int) -> None:
    tokens = {"tokenizer.ggml.tokens": ["x"] * 90, "tokenizer.ggml.padding_token_id": pad}
    assert parse(metadata() | tokens).pad_id is None
    # So are others, of which text/_gguf.py warns.
    others = {f"tokenizer.ggml.{name}_token_id": pad for name in ("bos", "eos")}
    config = parse(metadata() | tokens | others)
    assert (config.bos_id, config.eos_ids) == (None, ())


def test_fields_that_change_nothing_are_read() -> None:
    plain = parse(metadata())
    for key, value in (
        ("rope__scaling__attn_factor", 1.0),
        ("attention__causal", True),
        ("attention__head_count_kv", np.full(12, 4, np.int32)),
        ("feed_forward_length", np.full(12, 96, np.int32)),
        ("rope__scaling__factor", 1.0),
        ("rope__scaling__factor", 0.0),
    ):
        assert parse(metadata(**{key: value})) == plain, key
    with pytest.raises(ConfigError, match="attn_factor: this field of the metadata is not known"):
        parse(metadata(rope__scaling__attn_factor=1.5))
    mixed = np.full(12, 4, np.int32)
    mixed[3] = 8
    with pytest.raises(ConfigError, match="head_count_kv"):
        parse(metadata(attention__head_count_kv=mixed))


def test_a_factor_without_a_type_is_linear() -> None:
    """As llama.cpp reads it."""
    typed = parse(metadata(rope__scaling__type="linear", rope__scaling__factor=4.0))
    assert parse(metadata(rope__scaling__factor=4.0)) == typed
    assert typed != parse(metadata())


@pytest.mark.parametrize(
    ("architecture", "style"),
    # The list of architectures with LLAMA_ROPE_TYPE_NORM in src/llama-model.cpp of llama.cpp.
    [
        ("llama", "interleaved"),
        ("smollm3", "interleaved"),
        ("qwen2", "half"),
        ("qwen3", "half"),
        ("olmo2", "half"),
        ("gemma3", "half"),
    ],
)
def test_which_pairs_turn_together(architecture: str, style: str) -> None:
    config = parse(metadata(architecture))
    assert config.rotary.style == style
    if config.local_rotary is not None:
        assert config.local_rotary.style == style


@pytest.mark.parametrize("architecture", ["bailingmoe", "qwen3nextvl"])
def test_architectures_that_are_not_read(architecture: str) -> None:
    fields = metadata(architecture, expert_count=8, expert_used_count=2)
    message = f"architecture: expected one of .* with experts, got '{architecture}'"
    with pytest.raises(ConfigError, match=message):
        parse(fields)


def test_families_have_their_own_arithmetic() -> None:
    assert parse(metadata("qwen2")).qkv_bias
    assert parse(metadata("qwen3")).qk_norm is QkNorm.HEAD
    assert [x.rotary for x in parse(metadata("smollm3")).layers[:4]] == ["main"] * 3 + ["none"]
    olmo = parse(metadata("olmo2"))
    assert (olmo.norm_before, olmo.norm_after, olmo.qk_norm) == (False, True, QkNorm.ALL)


def test_a_latents_sizes_are_those_of_heads_not_of_the_cache() -> None:
    config = parse(latent())
    assert config.latent == Latent(rank=18, query_rank=22, plain=16, turned=8, value=12)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 8, 24)
    assert [layer.experts for layer in config.layers] == [False] + [True] * 11
    # Older files say the heads' sizes at once.
    whole = latent(
        attention__head_count_kv=8,
        attention__key_length=24,
        attention__value_length=12,
        attention__key_length_mla=None,
        attention__value_length_mla=None,
    )
    assert parse(whole) == config
    assert parse(latent(attention__q_lora_rank=0)).latent == replace(config.latent, query_rank=None)


def test_what_a_deepseek_leaves_out_is_what_llama_cpp_takes() -> None:
    sizes = {"count": 12, "chosen": 3, "inner": 26, "shared": 52}
    chosen = {"scores": "sigmoid", "corrected": True, "group_best": 2}
    config = parse(latent())
    assert config.family == "deepseek_v3"
    assert config.experts == Experts(**sizes, **chosen, normalised=False)
    said = {"group_count": 4, "group_used_count": 2, "weights_scale": 2.5, "weights_norm": True}
    found = parse(latent(**{f"expert_{key}": x for key, x in said.items()})).experts
    assert found == Experts(
        **sizes, **chosen, normalised=True, groups=4, chosen_groups=2, scale=2.5
    )
    for gating in (None, 1):  # no sigmoids: V2, whose files may say nothing
        config = parse(latent(expert_gating_func=gating, expert_group_count=4))
        assert config.family == "deepseek_v2"
        assert config.experts == Experts(**sizes, normalised=False, groups=4, chosen_groups=1)


def test_a_deepseeks_yarn_sharpens_the_scores() -> None:
    stretch = {
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": 40.0,
        "rope__scaling__original_context_length": 512,
        "rope__scaling__yarn_log_multiplier": float(np.float32(0.1 * 0.707)),
    }
    config = parse(latent(**stretch))
    assert config.rotary.amplitude == 1.0
    sharpened = 24**-0.5 * (0.1 * 0.707 * math.log(40.0) + 1) ** 2
    # Of 0.707, not of the float32 beside it, which is off by 2e-8.
    assert config.query_scale == pytest.approx(sharpened, rel=1e-12)


def test_a_qwen3_next_is_read_as_its_weights_were_written() -> None:
    config = parse(delta())
    assert config.family == "qwen3_next"
    assert config.delta == Delta(key_heads=3, value_heads=6, key=10, value=7, kernel=4)
    assert config.experts == Experts(12, 3, 26, True, shared=30, shared_expert_gate=True)
    assert config.norm_offset == 0.0  # the converter has added the 1
    assert config.attention_gate
    assert config.rotary == Rotary(1e4, "half", part=0.25)
    assert (config.num_heads, config.head_dim, config.rotary_dim("main")) == (8, 16, 4)
    # llama.cpp's reader, too, takes every fourth layer where nothing is said.
    assert [layer.delta for layer in config.layers] == [True, True, True, False] * 3
    assert all(layer.experts for layer in config.layers)
    other = parse(delta(full_attention_interval=2))
    assert [layer.delta for layer in other.layers] == [True, False] * 6
    kinds = np.array([False, True] * 5 + [True, False])
    named = parse(delta(full_attention_interval=2, attention__recurrent_layers=kinds))
    assert [layer.delta for layer in named.layers] == kinds.tolist()
    ahead = parse(delta(nextn_predict_layers=2, attention__recurrent_layers=kinds))
    assert [layer.delta for layer in ahead.layers] == kinds.tolist()[:10]
    assert parse(delta(nextn_predict_layers=0)) == config


@pytest.mark.parametrize(("head", "turned"), [(98, 2), (98, 96), (14, 4), (256, 64)])
def test_the_part_of_a_head_that_turns_is_a_number_of_its_numbers(head: int, turned: int) -> None:
    """As a fraction, 2 of 98 times 98 is less than 2."""
    sizes = {"attention.key_length": head, "attention.value_length": head}
    assert parse(delta(**sizes, rope__dimension_count=turned)).rotary_dim("main") == turned


@pytest.mark.parametrize(
    "raw",
    [
        metadata(),
        metadata("smollm3"),
        metadata("gemma3", attention__key_length=16),
        metadata(
            "gpt-oss",
            attention__sliding_window=128,
            expert_count=4,
            expert_used_count=2,
            expert_feed_forward_length=26,
        ),
        metadata(expert_count=4, expert_used_count=2),  # Mixtral
        delta(),
    ],
    ids=lambda raw: raw["general.architecture"],
)
def test_without_a_base_the_rotary_has_the_one_of_llama_cpp(raw: dict[str, Any]) -> None:
    """10,000 and no stretch in every architecture, also where Transformers takes another one."""
    rotary = parse(raw).rotary
    assert (rotary.theta, rotary.scaling) == (1e4, None)


def test_gemma_is_read_as_its_weights_were_written() -> None:
    gemma = parse(
        metadata(
            "gemma3",
            attention__key_length=16,
            attention__sliding_window=512,
            rope__freq_base=1e6,
            rope__scaling__type="linear",
            rope__scaling__factor=8.0,
        )
    )
    assert gemma.norm_offset == 0.0  # the converter has added the 1
    assert (gemma.activation, gemma.qk_norm, gemma.norm_after) == ("gelu_tanh", QkNorm.HEAD, True)
    assert [x.window for x in gemma.layers] == ([512] * 5 + [None]) * 2
    assert gemma.local_rotary == Rotary(1e4, "half")
    assert gemma.rotary == Rotary(1e6, "half", LinearScaling(8.0))
    assert gemma.query_scale is None  # by the width of a head
    assert gemma.embedding_scale == 8.0
    whole = parse(metadata("gemma3", attention__key_length=16))
    assert [x.window for x in whole.layers] == [None] * 12
    # Of the model with 62 layers, llama.cpp knows that another width scales the scores.
    largest = parse(metadata("gemma3", attention__key_length=16, block_count=62))
    assert largest.query_scale == (64 // 8) ** -0.5


def test_stretches_of_the_rotary() -> None:
    linear = parse(metadata(rope__scaling__type="linear", rope__scaling__factor=4.0))
    assert linear.rotary.scaling == LinearScaling(4.0)
    old = parse(metadata(rope__scale_linear=2.0))
    assert old.rotary.scaling == LinearScaling(2.0)
    none = parse(metadata(rope__scaling__type="none", rope__scale_linear=1.0))
    assert none.rotary.scaling is None
    yarn = parse(
        metadata(
            "qwen2",
            rope__scaling__type="yarn",
            rope__scaling__factor=4.0,
            rope__scaling__original_context_length=1024,
        )
    ).rotary.scaling
    assert isinstance(yarn, YarnScaling)
    assert (yarn.factor, yarn.original_context) == (4.0, 1024)
    assert yarn.amplitude == pytest.approx(0.1 * np.log(4.0) + 1)
    divided = parse(metadata(), divisors=(1.0, 2.0, 4.0, 8.0))
    assert divided.rotary.scaling == PairScaling((1.0, 2.0, 4.0, 8.0))
    plain = Rotary(10000.0, "interleaved").frequencies(8)
    np.testing.assert_array_equal(divided.rotary.frequencies(8), plain / [1, 2, 4, 8])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "x.gguf: general.architecture: expected one of 'llama', .* got None"),
        ({"general.architecture": "mamba"}, "architecture: expected one of .* got 'mamba'"),
        (metadata(block_count=None), "x.gguf: llama.block_count: expected an integer .* missing"),
        (metadata(block_count="12"), "llama.block_count: expected an integer .* got '12'"),
        (metadata(block_count=1 << 20), "llama.block_count: expected at most 1024 layers"),
        (metadata(embedding_length=1 << 40), "llama.embedding_length: expected an integer"),
        (
            metadata(feed_forward_length=np.array([96, 48])),
            r"llama.feed_forward_length: expected an integer .* got array\(\[96, 48\]\)",
        ),
        (metadata(attention__head_count=6), "num_heads: expected a multiple of num_kv_heads"),
        (metadata(attention__value_length=4), "value_length: expected 8, the width of a head's"),
        (metadata(rope__dimension_count=4), "rope.dimension_count: expected 8"),
        (latent(expert_gating_func=3), "gating_func: expected one of 0, 1, 2, got 3"),
        (latent(attention__key_length_mla=8), "key_length_mla: expected an integer from 9 to"),
        (latent(attention__value_length_mla="x"), "value_length_mla: expected an integer"),
        (latent(expert_shared_count=None), "expert_shared_count: expected this field in a file"),
        (latent(expert_group_count=5), "experts: expected a number of groups that divides 12"),
        (
            latent(expert_gating_func=1, expert_weights_norm=True),
            "expert_weights_norm: expected false, got True; weights of this family",
        ),
        *(
            (delta(**{key: None}), f"qwen3next.{key}: expected this field in a file with experts")
            for key in ("ssm.group_count", "rope.dimension_count", "attention.key_length")
        ),
        (
            delta(ssm__inner_size=40),
            "ssm.inner_size: expected a multiple of 6, the number of",
        ),
        (delta(ssm__time_step_rank=7, ssm__inner_size=42), "delta: expected a multiple of 3 value"),
        (delta(ssm__conv_kernel=65), "delta: expected a kernel of 1 to 64 tokens, got 65"),
        (delta(ssm__state_size="x"), "qwen3next.ssm.state_size: expected an integer"),
        (delta(rope__dimension_count=18), "rope.dimension_count: expected at most 16, the width"),
        (delta(rope__dimension_count=3), "expected an even part of a head of 16 numbers"),
        (delta(attention__value_length=8), "value_length: expected 16, the width of a head's"),
        (delta(nextn_predict_layers=12), "nextn_predict_layers: expected fewer than all 12 blocks"),
        *(
            (delta(attention__recurrent_layers=kinds), "recurrent_layers: expected a list of 12 of")
            for kinds in (True, np.array([True] * 11), np.array([1] * 12), ["x"] * 12)
        ),
        (
            delta(expert_weights_scale=2.5),
            "expert_weights_scale: this field of the metadata is not",
        ),
        (delta(expert_count=None), "general.architecture: expected one of .*, got 'qwen3next'"),
        (metadata(expert_count=8), "llama.expert_used_count: expected this field in a file with"),
        (metadata(expert_count=8, expert_used_count=9), "experts: expected 1 to 8 chosen"),
        (metadata(expert_gating_func=2), "llama.expert_gating_func: this field of the metadata is"),
        (
            metadata("smollm3", attention__sliding_window=9),
            "smollm3.attention.sliding_window: this field of the metadata is not known",
        ),
        (metadata(rope__scaling__type="dynamic"), "scaling: llama.rope.scaling.type: expected"),
        (
            metadata(rope__scaling__type="linear"),
            "llama.rope.scaling: llama.rope.scaling.factor: expected a number above zero",
        ),
        (
            metadata() | {"tokenizer.ggml.eos_token_id": -1},
            "tokenizer.ggml.eos_token_id: expected a token id",
        ),
    ],
)
def test_what_is_missing_wrong_or_unknown_is_named(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(raw)


@pytest.mark.parametrize("value", [np.array([8, 9]), np.array([8]), ["x"], "x"])
def test_a_list_or_a_text_where_a_number_belongs_is_named(value: object) -> None:
    ids = {"tokenizer.ggml.eos_token_id": 5, "tokenizer.ggml.padding_token_id": 6}
    llama = metadata(attention__value_length=8, rope__dimension_count=8, rope__scale_linear=1.0)
    window = {"attention.key_length": 16, "attention.sliding_window": 512}
    for raw in (
        llama | ids,
        metadata(rope__scaling__type="none"),
        metadata("gemma3", **window),
        delta(),
    ):
        parse(raw)
        for key in raw:
            with pytest.raises(ConfigError, match=key.rsplit(".", 1)[-1]):
                parse(raw | {key: value})


def test_fields_of_no_effect_are_left_alone() -> None:
    plain = parse(metadata())
    assert parse(metadata(expert_count=0, tensor_data_layout="Meta AI original pth")) == plain


def test_divisors_must_fit_the_head() -> None:
    with pytest.raises(
        ConfigError, match="expected 4 divisors, one for each pair of a head, got 2"
    ):
        parse(metadata(), divisors=(1.0, 2.0))
    with pytest.raises(ConfigError, match="divisors of pairs that are above zero"):
        parse(metadata(), divisors=(0.0, 1.0, 1.0, 1.0))
    with pytest.raises(ConfigError, match="rope_freqs.weight: expected this tensor or a rope.scal"):
        parse(metadata(rope__scaling__type="linear", rope__scaling__factor=2.0), (1.0,) * 4)
