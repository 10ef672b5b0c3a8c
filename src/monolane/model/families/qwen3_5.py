"""Qwen3.5, 3.6 and 3.8: as Qwen3-Next, dense or with mixtures in all layers, and other tensors.

    qwen3_5_text, qwen3_5_moe_text    the text model by itself
    qwen3_5, qwen3_5_moe              with a vision tower, which is not read

What Qwen3-Next has in one tensor is in several here: q, k and v apart from z, and b apart from a,
rows of each by kinds. Rotary positions have three numbers (``mrope_section``), which are one and
the same in text. Tensors "mtp." predict tokens further ahead (_ahead.py); in GGUF files they are
the last blocks.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model._reduce import NOW
from monolane.model.families._gguf import GGUF_NAMES, GgufSpelling
from monolane.model.families._nested import with_tower
from monolane.model.families._sparse import MERGED
from monolane.model.families.llama import surplus
from monolane.model.families.qwen2_moe import SHARED
from monolane.model.families.qwen3 import QWEN3
from monolane.model.families.qwen3_moe import ROUTED
from monolane.model.families.qwen3_next import (
    DELTA_NAMES,
    LINEAR,
    QWEN3_NEXT,
    read_kinds,
    render_hybrid,
)
from monolane.ops import Experts, Role

_NAMES: dict[Role, str] = {
    **{role: name for role, name in DELTA_NAMES.items() if role is not Role.DELTA_IN},
    Role.DELTA_QKV: "model.layers.{i}.linear_attn.in_proj_qkv.weight",
    Role.DELTA_Z: "model.layers.{i}.linear_attn.in_proj_z.weight",
    Role.DELTA_BETA: "model.layers.{i}.linear_attn.in_proj_b.weight",
    Role.DELTA_ALPHA: "model.layers.{i}.linear_attn.in_proj_a.weight",
}
# What a config.json that leaves them out means.
_DEFAULTS = {
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
_MOE = _DEFAULTS | {
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}


def _view(defaults: Mapping[str, Any], kv_heads: int) -> Any:
    def view(fields: Fields) -> Fields:
        there = {name: value for name, value in fields.raw.items() if value is not None}
        all_fields = {**defaults, "num_key_value_heads": kv_heads, **there}
        return Fields(all_fields, fields.source, fields.spelled)

    return view


def _layers(fields: Fields, experts: bool) -> tuple[LayerConfig, ...]:
    return tuple(
        LayerConfig(NOW, NOW, experts=experts, delta=kind == LINEAR) for kind in read_kinds(fields)
    )


def _experts(fields: Fields) -> Experts:
    return Experts(
        count=fields.size("num_experts"),
        chosen=fields.size("num_experts_per_tok"),
        inner=fields.size("moe_intermediate_size"),
        normalised=True,
        shared=fields.size("shared_expert_intermediate_size"),
        shared_expert_gate=True,
    )


def _render_moe(config: ModelConfig) -> dict[str, Any]:
    mixture = config.experts
    assert mixture is not None
    return render_hybrid(config, "Qwen3_5Moe", "qwen3_5_moe_text") | {
        "num_experts": mixture.count,
        "num_experts_per_tok": mixture.chosen,
        "moe_intermediate_size": mixture.inner,
        "shared_expert_intermediate_size": mixture.shared,
    }


_NEXT_GGUF = QWEN3_NEXT.gguf
assert _NEXT_GGUF is not None
_GGUF = replace(
    _NEXT_GGUF,
    architecture="qwen35",
    keys={key: place for key, place in _NEXT_GGUF.keys.items() if not key.startswith("expert")},
    # Of a token of text all four positions are equal, so that it says nothing.
    optional={**_NEXT_GGUF.optional, "rope.dimension_sections": "mrope_section"},
    names=lambda config: {
        Role.MLP_NORM: GGUF_NAMES[Role.POST_ATTENTION_NORM],
        Role.DELTA_BETA: "blk.{i}.ssm_beta.weight",
        Role.DELTA_ALPHA: "blk.{i}.ssm_alpha.weight",
    },
    tiled=True,
    experts=False,
)
_MOE_GGUF: GgufSpelling = replace(
    _GGUF,
    architecture="qwen35moe",
    keys=_NEXT_GGUF.keys,
    experts=True,
)

QWEN3_5_TEXT = replace(
    QWEN3_NEXT,
    name="qwen3_5_text",
    model_types=("qwen3_5_text",),
    fields={
        **{place: read for place, read in QWEN3_NEXT.fields.items() if place != "experts"},
        "layers": lambda f: _layers(f, experts=False),
    },
    fixed={**QWEN3_NEXT.fixed, **QWEN3.fixed},
    names=lambda config: {**QWEN3.names(config), **_NAMES},
    surplus=lambda config, name: surplus(config, name) or name.startswith("mtp."),
    render=lambda config: render_hybrid(config, "Qwen3_5", "qwen3_5_text"),
    view=_view(_DEFAULTS, 4),
    gguf=_GGUF,
)
QWEN3_5_MOE_TEXT = replace(
    QWEN3_5_TEXT,
    name="qwen3_5_moe_text",
    model_types=("qwen3_5_moe_text",),
    fields={
        **QWEN3_5_TEXT.fields,
        # Of no MLP.
        "intermediate_size": lambda f: f.size("intermediate_size", f.size("moe_intermediate_size")),
        "layers": lambda f: _layers(f, experts=True),
        "experts": _experts,
    },
    names=lambda config: {**QWEN3_5_TEXT.names(config), **ROUTED, **SHARED},
    merged=MERGED,
    render=_render_moe,
    view=_view(_MOE, 2),
    gguf=_MOE_GGUF,
)

_PREFIX, _OTHERS = ("model.", "model.language_model."), ("model.visual.",)
QWEN3_5 = with_tower(QWEN3_5_TEXT, "qwen3_5", "Qwen3_5ForConditionalGeneration", _PREFIX, _OTHERS)
QWEN3_5_MOE = with_tower(
    QWEN3_5_MOE_TEXT, "qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", _PREFIX, _OTHERS
)
