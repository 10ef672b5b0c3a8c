"""Every family: what it reads it writes, and its names are those of a checkpoint, each once."""

from dataclasses import replace
from typing import Any

import pytest

from monolane.errors import ConfigError
from monolane.model import (
    NOW,
    Experts,
    Head,
    Role,
    parse_config,
    render_config,
    tensor_specs,
)
from monolane.ops.conv.spec import Conv

from .spelled_families import (
    DENSE,
    KINDS,
    LATENT,
    NESTED,
    OWN_LAYERS,
    PAIRED,
    SIZES,
    round_trip,
    spelled,
)


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
    own = {"glm4_moe_lite": 192 + 64, "glm_moe_dsa": 192 + 64, "mistral4": 64 + 64}
    head_dim = own.get(kind, 128 + 64 if latent else 12)
    assert (config.num_lanes, config.head, config.head_dim) == (1, Head.VOCAB_PARALLEL, head_dim)
    assert {x.attention_reduce for x in config.layers} == {NOW}
    assert config.rotary.style == ("interleaved" if latent or kind in PAIRED else "half")
    assert config.norm_eps == EPSILONS.get(kind, 1e-6)
    assert config.qkv_bias is (kind in ("qwen2", "qwen2_moe", "gpt_oss", "seed_oss", "glm4", "glm"))


@pytest.mark.parametrize("kind", [kind for kind in DENSE if kind not in (*NESTED, "kimi_k2")])
def test_norms_and_rotary_that_are_not_there_are_what_transformers_takes(kind: str) -> None:
    mapping = pytest.importorskip("transformers").models.auto.configuration_auto.CONFIG_MAPPING
    ids: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    ids |= {"bos_token_id": 1} if kind == "cwm" else {}  # which takes no null
    fields = {name: x for name, x in spelled(kind, **ids).items() if name != "model_type"}
    said = {**mapping[kind](**fields).to_dict(), "dtype": "bfloat16", **ids}
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


EPSILONS = {  # of norms, where it is not 1e-6
    **dict.fromkeys(("olmo2", "gpt_oss", "mixtral", "lfm2", "lfm2_moe"), 1e-5),
    **dict.fromkeys(("ernie4_5", "exaone4", "olmo3", "phi3", "glm4_moe"), 1e-5),
    **dict.fromkeys(("glm4_moe_lite", "exaone_moe", "ministral3", "mistral3"), 1e-5),
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe"), 1e-5),
    **dict.fromkeys(("cohere", "cohere2", "ernie4_5_moe", "llama4", "llama4_text"), 1e-5),
    **dict.fromkeys(("kimi_linear", "glm_moe_dsa"), 1e-5),
    **dict.fromkeys(OWN_LAYERS, 1e-5),
    **dict.fromkeys(("olmoe", "exaone", "arcee", "cwm", "solar_open", "iquestcoder"), 1e-5),
    **dict.fromkeys(("glm", "glm4"), 1.5625e-7),
    "helium": 1e-8,
}
HYBRID = ("norm_offset", "qk_norm", "attention_gate", "delta")
MODULES = ("layers.modules", "operations.Mamba")
LLAMA4 = ("qk_norm", "norm_turned", "qk_unscaled", "attention_temperature", "experts")
LLAMA4 = (*LLAMA4, "layers.chunked", "layers.rotary")
GEMMA3N = ("local_rotary", "norm_after", "qk_norm", "query_scale", "value_norm", "activation")
GEMMA3N = (*GEMMA3N, "embedding_scale", "altup", "logit_cap", "layers.rotary", "layers.modules")
GEMMA3N = (*GEMMA3N, "operations.Laurel", "operations.PerLayer")
DOTS: dict[str, Any] = {"model_type": "dots1", "first_k_dense_replace": 1}
DOTS |= {"n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1}
FEATURES = {
    "llama": (),
    "mixtral": ("experts",),
    "qwen2_moe": ("qkv_bias", "experts"),
    "qwen3_moe": ("qk_norm", "experts"),
    "qwen3_next": ("norm_offset", "qk_norm", "attention_gate", "delta", "experts"),
    **dict.fromkeys(("qwen3_5", "qwen3_5_text"), HYBRID),
    **dict.fromkeys(("qwen3_5_moe", "qwen3_5_moe_text"), (*HYBRID, "experts")),
    "qwen3_vl": ("qk_norm",),
    "exaone_moe": ("qk_norm", "experts", "layers.rotary"),
    "hunyuan_v1_dense": ("qk_norm", "norm_turned"),
    "hunyuan_v1_moe": ("qk_norm", "norm_turned", "experts"),
    **dict.fromkeys(("ministral3", "mistral3"), ("attention_temperature",)),
    "gemma2": (
        "norm_offset",
        "norm_after",
        "score_cap",
        "activation",
        "embedding_scale",
        "logit_cap",
    ),
    "lfm2": ("qk_norm",),  # whose layers attend, all of them, where none is said not to
    "lfm2_moe": ("qk_norm", "experts"),
    "granite": ("query_scale",),
    **dict.fromkeys(("granitemoe", "granitemoeshared"), ("query_scale", "experts")),
    "granitemoehybrid": ("query_scale", "experts", "layers.rotary", *MODULES),
    "nemotron_h": ("activation", "layers.rotary", *MODULES),
    "falcon_h1": (*MODULES, "operations.Mlp"),
    "bamba": (*MODULES, "rotary.part"),
    "seed_oss": ("qkv_bias",),
    "ernie4_5": (),
    "ernie4_5_moe": ("experts",),
    "cohere": ("norm_centred", "logit_scale", "layers.modules"),
    "cohere2": ("norm_centred", "logit_scale", "layers.modules", "layers.rotary"),
    **dict.fromkeys(("llama4", "llama4_text"), LLAMA4),
    "exaone4": ("norm_before", "norm_after", "qk_norm", "layers.rotary"),
    "olmo3": ("local_rotary", "norm_before", "norm_after", "qk_norm", "layers.rotary"),
    "phi3": (),
    "glm4": ("norm_after", "qkv_bias"),
    "glm4_moe": ("experts",),
    "minimax_m2": ("qk_norm", "experts"),
    **dict.fromkeys(("mistral", "ministral", "exaone", "helium", "cwm"), ()),
    "gemma": ("norm_offset", "activation", "embedding_scale"),
    "glm": ("qkv_bias",),
    **dict.fromkeys(("olmoe", "dots1", "mellum"), ("qk_norm", "experts")),
    "flex_olmo": ("norm_before", "norm_after", "qk_norm", "experts"),
    "solar_open": ("experts",),
    "iquestcoder": (),
    "hyperclovax": ("norm_after",),
    "vaultgemma": ("norm_offset", "score_cap", "activation", "embedding_scale", "logit_cap"),
    "arcee": ("activation",),
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
    "youtu": ("latent",),
    "mistral4": ("attention_temperature", "latent", "query_scale", "experts"),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), ("index", "latent", "experts")),
    "deepseek_v4": (
        *("local_rotary", "experts", "hyper", "layers.modules", "operations.Compressed"),
        *("layers.hashed", "experts.limit", "experts.scores"),
    ),
    **dict.fromkeys(
        ("gemma4_text", "gemma4", "gemma4_unified_text", "gemma4_unified"),
        (
            *("local_rotary", "norm_after", "qk_norm", "query_scale", "value_norm", "activation"),
            *("embedding_scale", "layer_scales", "layers.rotary", "layers.sizes"),
        ),
    ),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), GEMMA3N),
    "kimi_linear": ("latent", "experts", "layers.rotary", "layers.modules", "operations.Kda"),
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
        ({"model_type": "vaultgemma"}, [4096, None, 4096]),
        ({"model_type": "mellum"}, [None, None, None]),
        (
            {"model_type": "mellum", "mlp_layer_types": ["dense"] * 3}
            | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
            [1024, None, 1024],
        ),
        *(
            ({**DOTS, "max_window_layers": 1, "sliding_window": said}, [None, found, found])
            for said, found in ((9, 9), (None, None))
        ),
        ({**DOTS, "max_window_layers": 1}, [None, 4096, 4096]),
        (DOTS, [None, None, None]),
        ({"model_type": "gpt_oss", "sliding_window": 9}, [9, None, 9]),
    ],
)
def test_windows(fields: dict[str, Any], windows: list[int | None]) -> None:
    config = parse_config(SIZES | fields)
    assert [layer.window for layer in config.layers] == windows
    assert round_trip(config) == config


@pytest.mark.parametrize("kind", [kind for kind in DENSE if kind not in OWN_LAYERS])
def test_layer_types_that_are_none(kind: str) -> None:
    other = "sliding_attention" if kind.startswith("llama4") else "chunked_attention"
    for wrong in ("full_attention", ["full_attention"] * 2, [other] * 3, [1, 2, 3]):
        with pytest.raises(ConfigError, match="layer_types: expected a list of 3 kinds"):
            parse_config(spelled(kind, layer_types=wrong))


def test_a_dense_config_is_not_written_as_a_laneformer() -> None:
    dense = parse_config(SIZES | {"model_type": "qwen2"})
    with pytest.raises(ConfigError, match="qkv_bias: expected a model without"):
        render_config(replace(dense, family="laneformer"))
    with pytest.raises(ConfigError, match="rotary pairs: expected interleaved"):
        render_config(replace(dense, family="laneformer", qkv_bias=False))


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


def test_exaone_is_read_as_it_is_published() -> None:
    """Under names of its own, which messages have too."""
    own = {"num_hidden_layers": "num_layers", "rms_norm_eps": "layer_norm_epsilon"}
    usual = spelled("exaone", rms_norm_eps=1e-5, hidden_act="silu")
    published = {own.get(name, name): x for name, x in usual.items() if name != "hidden_act"}
    published["activation_function"] = "silu"
    assert parse_config(published) == parse_config(usual)
    assert parse_config(published).num_layers == 3
    with pytest.raises(ConfigError, match="activation_function: expected one of 'silu', got 'gel"):
        parse_config(published | {"activation_function": "gelu"})
    with pytest.raises(ConfigError, match="num_layers: expected an integer"):
        parse_config(published | {"num_layers": 0})


@pytest.mark.parametrize("said", ["gelu", "gelu_pytorch_tanh", None])
def test_gemma_s_activation_has_two_names(said: str | None) -> None:
    assert parse_config(spelled("gemma", hidden_act=said)).activation == "gelu_tanh"
    with pytest.raises(ConfigError, match="hidden_act: expected one of 'gelu_pytorch_tanh'"):
        parse_config(spelled("gemma", hidden_act="relu"))


def test_gemma4_s_layers_are_named_with_any_zeros() -> None:
    """Transformers writes "05" in a model of more than ten layers."""
    kinds = (["sliding_attention"] * 5 + ["full_attention"]) * 2
    said = {"num_hidden_layers": 12, "layer_types": kinds}
    read = [
        parse_config(spelled("gemma4_text", **said, per_layer_config=own))
        for own in (
            {"05": {"head_dim": 512}, "11": {"head_dim": 512}},
            {"5": {"head_dim": 512}, "11": {"head_dim": 512}},
        )
    ]
    assert read[0] == read[1]
    assert [layer.head_dim for layer in read[0].layers] == ([None] * 5 + [512]) * 2


def test_llama4_s_layers() -> None:
    layers = SIZES | {"model_type": "llama4_text", "num_hidden_layers": 8}
    config = parse_config(layers)
    assert [layer.window for layer in config.layers] == [8192, 8192, 8192, None] * 2
    assert [layer.rotary for layer in config.layers] == ["main", "main", "main", "none"] * 2
    assert all(layer.experts for layer in config.layers)
    # As the first folders have it.
    old = layers | {"no_rope_layers": [], "attn_temperature_tuning": 4, "rope_theta": 500000.0}
    assert parse_config(old) == config
    every = parse_config(layers | {"interleave_moe_layer_step": 2, "attention_chunk_size": None})
    assert [layer.experts for layer in every.layers] == [False, True] * 4
    assert {layer.window for layer in every.layers} == {None}
    plain = parse_config(layers | {"use_qk_norm": False, "attn_temperature_tuning": False})
    assert (plain.qk_norm, plain.attention_temperature) == (None, None)
    assert all(round_trip(x) == x for x in (config, every, plain))


def test_lfm2_s_layers() -> None:
    layers = SIZES | {"model_type": "lfm2", "num_hidden_layers": 3}
    config = parse_config(layers | {"full_attn_idxs": [1]})
    kinds = ["conv", "full_attention", "conv"]
    assert config == parse_config(layers | {"layer_types": kinds})
    assert config.layers[0].modules == (Conv(channels=64, taps=3), "mlp")
    assert config.features == ("qk_norm", "layers.modules", "operations.Conv")
    assert round_trip(config) == config
    mixed = parse_config(layers | {"model_type": "lfm2_moe", "layer_types": kinds})
    assert [layer.experts for layer in mixed.layers] == [False, False, True]
    assert round_trip(mixed) == mixed


@pytest.mark.parametrize(
    ("fields", "width"),
    [
        ({"intermediate_size": 12288}, 8192),  # of LFM2-1.2B
        ({"block_ff_dim": 10752, "block_ffn_dim_multiplier": 1.0}, 7168),
        ({"intermediate_size": 100, "block_multiple_of": 7, "block_ffn_dim_multiplier": 1.5}, 105),
        ({"intermediate_size": 100, "block_auto_adjust_ff_dim": False}, 100),
    ],
)
def test_the_width_of_lfm2_s_mlps(fields: dict[str, Any], width: int) -> None:
    assert parse_config(SIZES | {"model_type": "lfm2"} | fields).intermediate_size == width


def test_positions_of_images_are_not_of_text() -> None:
    sections = {"rope_type": "default", "mrope_section": [11, 11, 10], "mrope_interleaved": True}
    for kind in ("qwen3_5", "qwen3_vl", "qwen3_5_moe_text"):
        plain = parse_config(spelled(kind))
        assert parse_config(spelled(kind, rope_parameters=sections)) == plain


@pytest.mark.parametrize("width", [256, 168, 24.5, 12])
def test_query_scale_is_read_and_written(width: float) -> None:
    config = parse_config(spelled("gemma3_text", head_dim=12, query_pre_attn_scalar=width))
    assert config.query_scale == (None if width == 12 else width**-0.5)
    assert round_trip(config) == config
