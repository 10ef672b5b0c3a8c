"""Every family: what it reads it writes, and its names are those of a checkpoint, each once."""

import math
from dataclasses import replace
from typing import Any

import pytest

from monolane.errors import ConfigError
from monolane.model import (
    NOW,
    Experts,
    Head,
    LayerConfig,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    QkNorm,
    Role,
    Rotary,
    YarnScaling,
    parse_config,
    render_config,
    tensor_specs,
)
from monolane.model.families import FAMILIES

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 320,
    "max_position_embeddings": 128,
}
LANES = {"num_lanes": 2, "broadcast_delay": 1}  # which dense families do not look at
KINDS = [kind for family in FAMILIES for kind in family.model_types]
DENSE = [kind for kind in KINDS if not kind.startswith("laneformer")]
LATENT = ["deepseek_v2", "deepseek_v3", "kimi_k2"]


def spelled(kind: str, **fields: Any) -> dict[str, Any]:
    """Return a config.json of a family: ``SIZES`` and ``fields``, where the family has them."""
    if kind == "gemma3":
        return {"model_type": kind, "text_config": SIZES | fields}
    if kind == "deepseek_v2":  # which has no default for it
        fields = {"num_experts_per_tok": 6} | fields
    if kind == "qwen3_next":  # whose default is a quarter of a head
        fields = {"partial_rotary_factor": 1.0} | fields
    return SIZES | {"model_type": kind} | (LANES if kind.startswith("laneformer") else {}) | fields


def round_trip(config: ModelConfig) -> ModelConfig:
    """Return what a config becomes that is written and read."""
    return parse_config(render_config(config))


@pytest.mark.parametrize("pad", [-1, 320, [-1]])
def test_a_padding_token_that_is_none_is_left_out(pad: object) -> None:
    """As LLaMA's first folders and conversions of llama2.c have it."""
    assert parse_config(spelled("llama", pad_token_id=pad)).pad_id is None
    assert parse_config(spelled("llama", pad_token_id=319)).pad_id == 319
    for name in ("bos_token_id", "eos_token_id"):
        with pytest.raises(ConfigError, match="token id"):
            parse_config(spelled("llama", **{name: pad}))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tied", [False, True])
def test_what_a_family_reads_it_writes(kind: str, tied: bool) -> None:
    config = parse_config(spelled(kind, tie_word_embeddings=tied))
    assert round_trip(config) == config
    specs = tensor_specs(config)
    assert len({spec.name for spec in specs}) == len(specs)
    assert config.num_parameters == sum(spec.size for spec in specs)
    assert (Role.HEAD in {spec.role for spec in specs}) is not tied


@pytest.mark.parametrize("kind", DENSE)
def test_dense_families_are_one_lane_that_reduces_at_once(kind: str) -> None:
    config = parse_config(spelled(kind, head_dim=12))
    latent = kind in LATENT
    head_dim = 128 + 64 if latent else 12
    assert (config.num_lanes, config.head, config.head_dim) == (1, Head.VOCAB_PARALLEL, head_dim)
    assert {x.attention_reduce for x in config.layers} == {NOW}
    assert config.rotary.style == ("interleaved" if latent else "half")
    assert config.norm_eps == (1e-5 if kind in ("olmo2", "gpt_oss", "mixtral") else 1e-6)
    assert config.qkv_bias is (kind in ("qwen2", "qwen2_moe", "gpt_oss"))


@pytest.mark.parametrize("kind", [kind for kind in DENSE if kind not in ("gemma3", "kimi_k2")])
def test_norms_and_rotary_that_are_not_there_are_what_transformers_takes(kind: str) -> None:
    mapping = pytest.importorskip("transformers").models.auto.configuration_auto.CONFIG_MAPPING
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    fields = {name: x for name, x in spelled(kind, **ids).items() if name != "model_type"}
    said = {**mapping[kind](**fields).to_dict(), "dtype": "bfloat16"}
    theirs, ours = parse_config(said), parse_config(spelled(kind))
    assert (ours.norm_eps, ours.rotary) == (theirs.norm_eps, theirs.rotary)


def test_qwen1_5_moe_is_read_as_it_is_published() -> None:
    """The fields of Qwen/Qwen1.5-MoE-A2.7B that say something of the arithmetic."""
    config = parse_config(
        {
            "model_type": "qwen2_moe",
            "decoder_sparse_step": 1,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "max_position_embeddings": 8192,
            "max_window_layers": 21,
            "moe_intermediate_size": 1408,
            "norm_topk_prob": False,
            "num_attention_heads": 16,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "num_hidden_layers": 24,
            "num_key_value_heads": 16,
            "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0,
            "shared_expert_intermediate_size": 5632,
            "sliding_window": 32768,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "use_sliding_window": False,
            "vocab_size": 151936,
        }
    )
    assert config.experts == Experts(
        60, 4, 1408, normalised=False, shared=5632, shared_expert_gate=True
    )
    assert all(layer.experts and layer.window is None for layer in config.layers)
    assert config.num_parameters == 14315784192  # as its card says: 14.3 billion
    assert round_trip(config) == config


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
FEATURES = {
    "llama": (),
    "mixtral": ("experts",),
    "qwen2_moe": ("qkv_bias", "experts"),
    "qwen3_moe": ("qk_norm", "experts"),
    "qwen3_next": ("norm_offset", "qk_norm", "attention_gate", "delta", "experts"),
    "mistral": (),
    "qwen2": ("qkv_bias",),
    "qwen3": ("qk_norm",),
    "smollm3": ("layers.rotary",),
    "olmo2": ("norm_before", "norm_after", "qk_norm"),
    "gpt_oss": (
        "qkv_bias",
        "out_bias",
        "attention_sinks",
        "activation",
        "experts",
        "rotary.amplitude",
    ),
    **dict.fromkeys(LATENT, ("latent", "experts")),
    "gemma3_text": (
        "local_rotary",
        "norm_offset",
        "norm_after",
        "qk_norm",
        "activation",
        "embedding_scale",
        "layers.rotary",
    ),
}


@pytest.mark.parametrize("kind", DENSE)
def test_what_a_family_asks_of_executors(kind: str) -> None:
    layers = {"num_hidden_layers": 6}  # the first with rotary only, or without, is the fourth
    expected = FEATURES.get(kind, FEATURES["gemma3_text"])
    assert parse_config(spelled(kind, **layers)).features == expected


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({"model_type": "llama", "sliding_window": 9}, [None, None, None]),
        ({"model_type": "mistral"}, [4096, 4096, 4096]),
        ({"model_type": "mistral", "sliding_window": None}, [None, None, None]),
        ({"model_type": "mistral", "sliding_window": 9}, [9, 9, 9]),
        ({"model_type": "qwen2", "sliding_window": 9}, [None, None, None]),
        ({"model_type": "qwen2", "use_sliding_window": True}, [None, None, None]),
        (
            {
                "model_type": "qwen2",
                "use_sliding_window": True,
                "sliding_window": 9,
                "max_window_layers": 2,
            },
            [None, None, 9],
        ),
        (
            {
                "model_type": "qwen2",
                "use_sliding_window": True,
                "sliding_window": 9,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            [9, None, 9],
        ),
        ({"model_type": "smollm3", "sliding_window": 9}, [None, None, None]),
        (
            {
                "model_type": "smollm3",
                "use_sliding_window": True,
                "sliding_window": 9,
                "no_rope_layer_interval": 2,
            },
            [None, 9, None],
        ),
        ({"model_type": "gemma3_text"}, [4096, 4096, 4096]),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 2}, [4096, None, 4096]),
        (
            {
                "model_type": "gemma3_text",
                "sliding_window": 9,
                "sliding_window_pattern": 2,  # which layer_types overrules
                "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            },
            [None, 9, None],
        ),
        *(
            (
                {
                    "model_type": kind,
                    "use_sliding_window": True,
                    "sliding_window": 9,
                    "layer_types": ["sliding_attention"] * 3,
                },
                [9, 9, 9],
            )
            for kind in ("mixtral", "qwen3_moe")
        ),
        (
            {"model_type": "mixtral", "layer_types": ["sliding_attention", "full_attention"] * 2}
            | {"num_hidden_layers": 4},
            [None] * 4,
        ),
        (
            {"model_type": "qwen2_moe", "sliding_window": 0}
            | {"layer_types": ["full_attention"] * 3},
            [None, None, None],
        ),
        ({"model_type": "olmo2", "sliding_window": 9}, [None, None, None]),
        ({"model_type": "gpt_oss"}, [128, None, 128]),
        ({"model_type": "gpt_oss", "sliding_window": 9}, [9, None, 9]),
    ],
)
def test_windows(fields: dict[str, Any], windows: list[int | None]) -> None:
    config = parse_config(SIZES | fields)
    assert [layer.window for layer in config.layers] == windows
    assert round_trip(config) == config


@pytest.mark.parametrize("kind", DENSE)
def test_layer_types_that_are_none(kind: str) -> None:
    for wrong in ("full_attention", ["full_attention"] * 2, ["chunked_attention"] * 3, [1, 2, 3]):
        with pytest.raises(ConfigError, match="layer_types: expected a list of 3 kinds"):
            parse_config(spelled(kind, layer_types=wrong))


def test_a_dense_config_is_not_written_as_a_laneformer() -> None:
    dense = parse_config(SIZES | {"model_type": "qwen2"})
    with pytest.raises(ConfigError, match="qkv_bias: expected a model without"):
        render_config(replace(dense, family="laneformer"))
    with pytest.raises(ConfigError, match="rotary pairs: expected interleaved"):
        render_config(replace(dense, family="laneformer", qkv_bias=False))


@pytest.mark.parametrize("kind", [x for x in DENSE if x not in LATENT and x[:6] != "gemma3"])
@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize(
    ("stretch", "expected"),
    [
        ({"rope_type": "default"}, None),
        ({"type": "linear", "factor": 8}, LinearScaling(8.0)),
        (LLAMA3, Llama3Scaling(4.0, 1.0, 4.0, 32)),
        (YARN, YarnScaling(4.0, 32, 0.1 * math.log(4) + 1)),
        (
            {"type": "yarn", "factor": 4.0, "beta_fast": 16, "beta_slow": 2, "truncate": False},
            YarnScaling(4.0, 128, 0.1 * math.log(4) + 1, 16.0, 2.0, False),
        ),
        (YARN | {"attention_factor": 0.75}, YarnScaling(4.0, 32, 0.75)),
        (YARN | {"factor": 0.5}, YarnScaling(0.5, 32, 1.0)),
        (YARN | {"factor": None}, YarnScaling(4.0, 32, 0.1 * math.log(4) + 1)),
        (YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}, YarnScaling(4.0, 32, 1.0)),
        (
            YARN | {"mscale": 2.0, "mscale_all_dim": 1.0},
            YarnScaling(4.0, 32, (0.2 * math.log(4) + 1) / (0.1 * math.log(4) + 1)),
        ),
        (
            YARN | {"mscale": 2.0, "mscale_all_dim": 0},
            YarnScaling(4.0, 32, 0.1 * math.log(4) + 1),
        ),
    ],
)
def test_rotary_in_both_spellings(
    kind: str, newer: bool, stretch: dict[str, Any], expected: Any
) -> None:
    if newer:
        fields: dict[str, Any] = {"rope_parameters": stretch | {"rope_theta": 5e5}}
    else:
        fields = {"rope_theta": 5e5, "rope_scaling": stretch}
    config = parse_config(spelled(kind, **fields))
    assert config.rotary == Rotary(5e5, "half", expected)
    assert round_trip(config) == config


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({}, 0.25),
        ({"partial_rotary_factor": 0.5}, 0.5),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, 0.5),
        ({"rope_scaling": YARN, "partial_rotary_factor": 0.5}, 0.5),
        (
            {"partial_rotary_factor": 1, "rope_parameters": YARN | {"partial_rotary_factor": 0.5}},
            0.5,
        ),
    ],
)
def test_the_part_of_a_head_that_turns(fields: dict[str, Any], part: float) -> None:
    config = parse_config(SIZES | {"model_type": "qwen3_next", "head_dim": 16} | fields)
    assert (config.rotary.part, config.rotary_dim) == (part, 16 * part)
    assert "rotary.part" in config.features
    assert round_trip(config) == config


def test_layers_with_states_are_those_that_are_named_or_all_but_every_fourth() -> None:
    layers = SIZES | {"model_type": "qwen3_next", "num_hidden_layers": 8}
    config = parse_config(layers)
    assert [layer.delta for layer in config.layers] == [True, True, True, False] * 2
    every = parse_config(layers | {"full_attention_interval": 2})
    assert [layer.delta for layer in every.layers] == [True, False] * 4
    named = ["full_attention", "linear_attention"] * 4
    assert parse_config(layers | {"layer_types": named}).layers == tuple(reversed(every.layers[:8]))
    without = parse_config(layers | {"layer_types": ["full_attention"] * 8})
    assert without.delta is None
    assert round_trip(without) == without


def test_two_spellings_that_say_the_same() -> None:
    both = {"rope_scaling": YARN, "rope_parameters": YARN | {"rope_theta": 5e5}}
    config = parse_config(spelled("llama", **both))
    assert config.rotary == Rotary(5e5, "half", YarnScaling(4.0, 32, 0.1 * math.log(4) + 1))


@pytest.mark.parametrize("kind", ["gemma3_text", "gemma3"])
def test_rotary_of_each_kind_of_layer(kind: str) -> None:
    linear, yarn = {"rope_type": "linear", "factor": 8.0}, YARN | {"rope_theta": 100.0}
    stretched = Rotary(1e6, "half", LinearScaling(8.0))
    local = Rotary(100.0, "half", YarnScaling(4.0, 32, 0.1 * math.log(4) + 1))
    for fields, both in (
        ({}, (Rotary(1e6, "half"), Rotary(1e4, "half"))),
        ({"rope_scaling": linear}, (stretched, Rotary(1e4, "half"))),
        (
            {"rope_theta": 7.0, "rope_local_base_freq": 5.0},
            (Rotary(7.0, "half"), Rotary(5.0, "half")),
        ),
        ({"rope_parameters": {"full_attention": linear}}, (stretched, Rotary(1e4, "half"))),
        ({"rope_parameters": {"sliding_attention": yarn}}, (Rotary(1e6, "half"), local)),
        (
            {"rope_parameters": {"full_attention": linear, "sliding_attention": yarn}},
            (stretched, local),
        ),
    ):
        config = parse_config(spelled(kind, **fields))
        assert (config.rotary, config.local_rotary) == both
        assert round_trip(config) == config
        assert ("rotary.amplitude" in config.features) is (local in both)


@pytest.mark.parametrize("width", [256, 168, 24.5, 12])
def test_query_scale_is_read_and_written(width: float) -> None:
    config = parse_config(spelled("gemma3_text", head_dim=12, query_pre_attn_scalar=width))
    assert config.query_scale == (None if width == 12 else width**-0.5)
    assert round_trip(config) == config


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: expected 1"),
        ("qwen3_next", {"partial_rotary_factor": 1.5}, "rotary: expected a part of a head above 0"),
        ("qwen3_next", {"head_dim": 6, "partial_rotary_factor": 0.5}, "expected an even part of a"),
        ("qwen3_next", {"linear_num_value_heads": 24}, "delta: expected a multiple of 16 value"),
        ("qwen3_next", {"linear_conv_kernel_dim": 65}, "delta: expected a kernel of 1 to 64"),
        ("qwen3_next", {"linear_key_head_dim": 0}, "linear_key_head_dim: expected an integer"),
        ("qwen3_next", {"attention_bias": True}, "attention_bias: expected false"),
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
        ("smollm3", {"layer_types": 3}, "layer_types: expected a list of 3 kinds"),
        ("smollm3", {"attention_bias": True}, "attention_bias: expected false"),
        ("smollm3", {"mlp_bias": True}, "mlp_bias: expected false"),
        ("olmo2", {"attention_bias": True}, "attention_bias: expected false"),
        ("olmo2", {"hidden_act": "gelu"}, "hidden_act: expected one of 'silu'"),
        (
            "gemma3_text",
            {"final_logit_softcapping": 30.0},
            "final_logit_softcapping: expected null",
        ),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: expected null"),
        ("gemma3_text", {"hidden_activation": "silu"}, "one of 'gelu_pytorch_tanh', got 'silu'"),
        ("gemma3_text", {"attention_bias": True}, "attention_bias: expected false"),
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
        ("gemma", "Gemma 3 is read"),
        ("gemma2", "it caps scores and logits"),
        ("olmo", "its norms have no scales"),
        ("deepseek_v32", "it chooses the keys that it attends to"),
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
        ({"local_rotary": Rotary(style="half")}, "local_rotary"),
        ({"layers": (LayerConfig(NOW, NOW, rotary="none"),) * 3}, "layers"),
        ({"head": Head.MEAN}, "head"),
    ],
)
def test_what_a_family_has_no_word_for_is_not_written(change: dict[str, Any], name: str) -> None:
    llama = parse_config(spelled("llama"))
    with pytest.raises(ConfigError, match=f"{name}: expected what a config.json of llama can say"):
        render_config(replace(llama, **change))
