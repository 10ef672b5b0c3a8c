"""DeepSeek-V3, and Kimi-K2, which is one; DeepSeek-V2; GLM-4.7-Flash, which is a small V3; Youtu.

Latent attention in all layers; mixtures of experts from layer ``first_k_dense_replace`` on, each
with an MLP that all tokens share; Youtu has none. In V3 experts are chosen by sigmoids of the
router's logits, with a correction, out of groups with the largest sums of their two best; in V2 by
the logits, out of groups with the largest. The norms of the latents have an epsilon of their own,
1e-6.

YaRN's ``mscale_all_dim`` sharpens the scores: they are multiplied by the square of
0.1 mscale_all_dim ln(factor) + 1. Layers behind ``num_hidden_layers`` in V3's files predict tokens
further ahead (_ahead.py). Where a field is not there it means what Transformers takes for
it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model._rotary import Rotary, YarnScaling
from monolane.model.families._ahead import DEEPSEEK_AHEAD
from monolane.model.families._family import render_common
from monolane.model.families._gguf import AHEAD, GgufSpelling
from monolane.model.families._rotary import read_rotary, read_sharpening, write_sharpening
from monolane.model.families._sparse import DENSE as DENSE_MLP
from monolane.model.families._sparse import (
    ROUTED,
    SPARSE,
    read_gguf_blocks,
    read_sparse,
    render_experts,
)
from monolane.model.families.llama import DENSE, LLAMA, NAMES, read_layers, surplus
from monolane.ops import Experts, Latent, Role

_ATTENTION = "model.layers.{i}.self_attn."
_LATENT = {
    Role.Q_DOWN: _ATTENTION + "q_a_proj.weight",
    Role.Q_NORM: _ATTENTION + "q_a_layernorm.weight",
    Role.KV_DOWN: _ATTENTION + "kv_a_proj_with_mqa.weight",
    Role.K_NORM: _ATTENTION + "kv_a_layernorm.weight",
    Role.KV_UP: _ATTENTION + "kv_b_proj.weight",
}
_SIZES = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_V3: dict[str, Any] = _SIZES | {
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}
_V2: dict[str, Any] = _SIZES | {
    "first_k_dense_replace": 0,
    "n_routed_experts": 64,
    "moe_intermediate_size": 1407,
    "n_shared_experts": 2,
    "topk_method": "greedy",
    "routed_scaling_factor": 1.0,
}
_LITE: dict[str, Any] = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "n_routed_experts": 64,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1536,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.8,
    "rms_norm_eps": 1e-5,
}
_QUERY_RANK, _LITE_QUERY_RANK = 1536, 768  # null: queries have no latent
_GREEDY, _LIMITED = "greedy", "group_limited_greedy"  # V2's ways to choose


def _with(defaults: Mapping[str, Any], query_rank: int = _QUERY_RANK) -> Callable[[Fields], Fields]:
    def view(fields: Fields) -> Fields:
        there = {name: value for name, value in fields.raw.items() if value is not None}
        rank = {"q_lora_rank": fields.raw.get("q_lora_rank", query_rank)}
        return Fields({**defaults, **there, **rank}, fields.source, fields.spelled)

    return view


def _latent(fields: Fields) -> Latent:
    return Latent(
        rank=fields.size("kv_lora_rank"),
        query_rank=fields.optional_size("q_lora_rank"),
        plain=fields.size("qk_nope_head_dim"),
        turned=fields.size("qk_rope_head_dim"),
        value=fields.size("v_head_dim"),
    )


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    both = zip(read_layers(fields), read_sparse(fields), strict=True)
    return tuple(replace(layer, experts=mixed) for layer, mixed in both)


def _v3_rotary(fields: Fields) -> Rotary:
    interleaved = fields.flag("rope_interleave", True)
    return read_rotary(fields, "interleaved" if interleaved else "half", stretches=("yarn",))


def _v2_rotary(fields: Fields) -> Rotary:
    return read_rotary(fields, "interleaved", stretches=("yarn",))


def _query_scale(read: Callable[[Fields], Rotary]) -> Callable[[Fields], float | None]:
    def query_scale(fields: Fields) -> float | None:
        scaling = read(fields).scaling
        if not isinstance(scaling, YarnScaling):
            return None
        sharpening = read_sharpening(fields, scaling.factor)
        return None if sharpening == 1 else _latent(fields).head ** -0.5 * sharpening * sharpening

    return query_scale


def read_mixture(fields: Fields, **choice: Any) -> Experts | None:
    """Read the sizes of experts, of which ``choice`` says how they are chosen; None: none are."""
    if not any(read_sparse(fields)):
        return None
    inner = fields.size("moe_intermediate_size")
    return Experts(
        count=fields.size("n_routed_experts"),
        chosen=fields.size("num_experts_per_tok"),
        inner=inner,
        scale=fields.number("routed_scaling_factor"),
        shared=inner * fields.size("n_shared_experts", minimum=0),
        **choice,
    )


def _v3_experts(fields: Fields) -> Experts | None:
    return read_mixture(
        fields,
        normalised=fields.flag("norm_topk_prob", True),
        scores="sigmoid",
        corrected=True,
        groups=fields.size("n_group"),
        chosen_groups=fields.size("topk_group"),
        group_best=2,
    )


def _v2_experts(fields: Fields) -> Experts | None:
    limited = fields.choice("topk_method", (_GREEDY, _LIMITED)) == _LIMITED
    return read_mixture(
        fields,
        normalised=False,
        groups=fields.size("n_group") if limited else 1,
        chosen_groups=fields.size("topk_group") if limited else 1,
    )


def _names(config: ModelConfig) -> Mapping[Role, str]:
    names = {**NAMES, **_LATENT, **ROUTED}
    if config.latent is not None and config.latent.query_rank is not None:
        names[Role.Q] = _ATTENTION + "q_b_proj.weight"
    return names


def _surplus(config: ModelConfig, name: str) -> bool:
    """Tell also the tensors of layers that predict tokens further ahead."""
    parts = name.split(".")
    ahead = parts[:2] == ["model", "layers"] and parts[2:3] and parts[2].isdigit()
    return surplus(config, name) or (bool(ahead) and int(parts[2]) >= config.num_layers)


def render_as(kind: str, model_type: str) -> Callable[[ModelConfig], dict[str, Any]]:
    """Return how a family with latent attention is written, for the classes named ``kind``."""

    def render(config: ModelConfig) -> dict[str, Any]:
        latent, mixture = config.latent, config.experts
        assert latent is not None
        said = render_common(config, f"{kind}ForCausalLM", model_type) | {
            "hidden_act": "silu",
            "head_dim": latent.turned,
            "rms_norm_eps": config.norm_eps,
            "attention_bias": False,
            "kv_lora_rank": latent.rank,
            "q_lora_rank": latent.query_rank,
            "qk_nope_head_dim": latent.plain,
            "qk_rope_head_dim": latent.turned,
            "v_head_dim": latent.value,
            "first_k_dense_replace": sum(not layer.experts for layer in config.layers),
        }
        if config.query_scale is not None and isinstance(config.rotary.scaling, YarnScaling):
            sharpening = math.sqrt(config.query_scale * math.sqrt(latent.head))
            said["rope_scaling"] |= write_sharpening(sharpening, config.rotary.scaling.factor)
        if model_type in ("glm4_moe_lite", "youtu"):
            del said["first_k_dense_replace"]
        if model_type == "glm4_moe_lite":
            said["mlp_layer_types"] = [SPARSE if x.experts else DENSE_MLP for x in config.layers]
        if model_type != "deepseek_v2":
            said["rope_interleave"] = config.rotary.style == "interleaved"
        said |= render_experts(mixture, "n_routed_experts", "n_shared_experts")
        if mixture is not None and not mixture.corrected:
            said["topk_method"] = _LIMITED
        return said

    return render


def _gguf_names(config: ModelConfig) -> Mapping[Role, str]:
    names = {
        Role.Q_NORM: "blk.{i}.attn_q_a_norm.weight",
        Role.K_NORM: "blk.{i}.attn_kv_a_norm.weight",
    }
    if config.latent is not None and config.latent.query_rank is not None:
        names[Role.Q] = "blk.{i}.attn_q_b.weight"
    return names


def _gguf_given(fields: Fields) -> dict[str, Any]:
    """Return the sizes of heads, and what leaving a key out means: as llama.cpp has both.

    Files whose kv_b is split say the sizes of the one KV head that a cache has, and with ``_mla``
    those of the heads; files whose kv_b is whole say those of the heads alone.
    """
    ends = "_mla" if fields.has("key_length_mla") else ""
    turned = fields.size("qk_rope_head_dim")
    given: dict[str, Any] = {
        **read_gguf_blocks(fields),
        "qk_nope_head_dim": fields.size(f"key_length{ends}", minimum=turned + 1) - turned,
        "v_head_dim": fields.size(f"value_length{ends}"),
        "q_lora_rank": fields.optional_size("q_lora_rank"),
        "norm_topk_prob": fields.flag("norm_topk_prob", False),
        "routed_scaling_factor": fields.number("routed_scaling_factor", 1.0),
        "n_group": fields.size("n_group", 1),
        "topk_group": fields.size("topk_group", 1),
    }
    if fields.has("rope_scaling") and fields.has("yarn_log_multiplier"):
        # A tenth of mscale_all_dim, which has few digits, in float32. All published models have
        # mscale as large, and no key says it.
        scale = float(f"{10 * fields.number('yarn_log_multiplier'):.6g}")
        sharpened = {"mscale": scale, "mscale_all_dim": scale}
        given["rope_scaling"] = {**fields.raw["rope_scaling"], **sharpened}
    return given


def _v2_gguf_given(fields: Fields) -> dict[str, Any]:
    given = _gguf_given(fields)
    return given | {"topk_method": _LIMITED if given["n_group"] > 1 else _GREEDY}


_GGUF = GgufSpelling(
    architecture="deepseek2",
    style="interleaved",
    keys={
        "attention.kv_lora_rank": "kv_lora_rank",
        "attention.key_length": "key_length",
        "attention.value_length": "value_length",
        "rope.dimension_count": "qk_rope_head_dim",
        "leading_dense_block_count": "first_k_dense_replace",
        "expert_count": "n_routed_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_count": "n_shared_experts",
    },
    optional={
        "attention.q_lora_rank": "q_lora_rank",
        "attention.key_length_mla": "key_length_mla",
        "attention.value_length_mla": "value_length_mla",
        "expert_group_count": "n_group",
        "expert_group_used_count": "topk_group",
        "expert_weights_scale": "routed_scaling_factor",
        "expert_weights_norm": "norm_topk_prob",
        "expert_gating_func": "expert_gating_func",  # which tells V3 and V2 apart
        "rope.scaling.yarn_log_multiplier": "yarn_log_multiplier",
        AHEAD: AHEAD,
    },
    given=_gguf_given,
    names=_gguf_names,
    experts=True,
    gating=(2,),  # sigmoids
)

_FIXED: dict[str, tuple[str | float | None, str]] = {
    "hidden_act": ("silu", ""),
    "attention_bias": (False, "executors have no biases in latent attention"),
    "moe_layer_freq": (1, "all layers behind the dense ones are mixtures"),
}

DEEPSEEK_V3 = replace(
    LLAMA,
    name="deepseek_v3",
    model_types=("deepseek_v3", "kimi_k2"),
    fields=DENSE
    | {
        "num_kv_heads": lambda f: f.size("num_attention_heads"),
        "head_dim": lambda f: _latent(f).head,
        "latent": _latent,
        "layers": _layers,
        "rotary": _v3_rotary,
        "query_scale": _query_scale(_v3_rotary),
        "experts": _v3_experts,
    },
    fixed=_FIXED
    | {
        "scoring_func": ("sigmoid", ""),
        "topk_method": ("noaux_tc", ""),
    },
    names=_names,
    surplus=_surplus,
    render=render_as("DeepseekV3", "deepseek_v3"),
    view=_with(_V3),
    gguf=_GGUF,
    ahead=DEEPSEEK_AHEAD,
)

DEEPSEEK_V2 = replace(
    DEEPSEEK_V3,
    name="deepseek_v2",
    model_types=("deepseek_v2",),
    fields={
        **DEEPSEEK_V3.fields,
        "rotary": _v2_rotary,
        "query_scale": _query_scale(_v2_rotary),
        "experts": _v2_experts,
    },
    fixed=_FIXED
    | {
        "scoring_func": ("softmax", ""),
        "norm_topk_prob": (False, "weights of this family do not add up to 1"),
        "mlp_bias": (False, "executors have no biases in the MLP"),
    },
    render=render_as("DeepseekV2", "deepseek_v2"),
    view=_with(_V2),
    gguf=replace(_GGUF, given=_v2_gguf_given, gating=(0, 1)),  # none said, a softmax
)

# In GGUF files it calls itself what V3 does, and is read as that: the arithmetic is the same.
GLM4_MOE_LITE = replace(
    DEEPSEEK_V3,
    name="glm4_moe_lite",
    model_types=("glm4_moe_lite",),
    fixed={"hidden_act": ("silu", ""), "attention_bias": _FIXED["attention_bias"]},
    render=render_as("Glm4MoeLite", "glm4_moe_lite"),
    view=_with(_LITE, _LITE_QUERY_RANK),
    gguf=None,
)

# Of files without experts, which say them all the same.
_MIXTURE_KEYS = (
    "leading_dense_block_count",
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "expert_shared_count",
)
YOUTU = replace(
    GLM4_MOE_LITE,
    name="youtu",
    model_types=("youtu",),
    fields={
        **{place: read for place, read in DEEPSEEK_V3.fields.items() if place != "experts"},
        "layers": read_layers,
    },
    surplus=surplus,
    render=render_as("Youtu", "youtu"),
    view=_with(_SIZES | {"num_attention_heads": 16, "tie_word_embeddings": True}),
    ahead=None,
    gguf=replace(
        _GGUF,
        keys={key: name for key, name in _GGUF.keys.items() if key not in _MIXTURE_KEYS},
        optional={**_GGUF.optional, **{key: _GGUF.keys[key] for key in _MIXTURE_KEYS}},
        experts=False,
        gating=(),
    ),
)
