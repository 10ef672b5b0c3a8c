"""Ernie 4.5, dense and with mixtures: a Llama whose rotary pairs lie side by side.

Mixtures are in the layers from ``moe_layer_start_index`` to ``moe_layer_end_index`` whose number,
counted from 1, ``moe_layer_interval`` divides. Experts are chosen by their shares of a softmax with
a correction. Tensors "mtp", which predict tokens further ahead, are not read.
"""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model.families._family import layer_count
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._rotary import read_rotary
from monolane.model.families.llama import (
    DENSE,
    LLAMA,
    NAMES,
    read_layers,
    render_as,
    surplus,
)
from monolane.model.families.qwen3_moe import ROUTED
from monolane.ops import Experts, Role

# What Transformers takes where the fields are not there.
_THETA, _HEAD_DIM, _KV_HEADS, _NORM_EPS = 5e5, 128, 2, 1e-5
_MOE_KV_HEADS, _NORM_MIN = 4, 1e-12
_MLP = "model.layers.{i}.mlp."
_NAMES = {
    **NAMES,
    **ROUTED,
    Role.ROUTER_CORRECTION: _MLP + "moe_statics.e_score_correction_bias",
    Role.SHARED_GATE: _MLP + "shared_experts.gate_proj.weight",
    Role.SHARED_UP: _MLP + "shared_experts.up_proj.weight",
    Role.SHARED_DOWN: _MLP + "shared_experts.down_proj.weight",
}


def _mixed(fields: Fields) -> list[bool]:
    """Tell of each layer whether it is a mixture."""
    count, step = layer_count(fields), fields.size("moe_layer_interval", 1)
    first = fields.size("moe_layer_start_index", 1, minimum=0)
    said = fields.raw.get("moe_layer_end_index")
    last = count - 1 if said in (None, -1) else fields.size("moe_layer_end_index", minimum=0)
    return [(i + 1) % step == 0 and first <= i <= last for i in range(count)]


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    both = zip(read_layers(fields), _mixed(fields), strict=True)
    return tuple(replace(layer, experts=mixed) for layer, mixed in both)


def _experts(fields: Fields) -> Experts | None:
    if not any(_mixed(fields)):
        return None
    inner = fields.size("moe_intermediate_size", 1536)
    return Experts(
        count=fields.size(fields.first("moe_num_experts", "num_experts"), 64),
        chosen=fields.size(fields.first("moe_k", "num_experts_per_tok"), 6),
        inner=inner,
        normalised=True,
        corrected=True,
        shared=inner * fields.size("moe_num_shared_experts", 2, minimum=0),
    )


def _render(config: ModelConfig) -> dict[str, Any]:
    return render_as("Ernie4_5", "ernie4_5")(config) | {"use_bias": False}


def _render_moe(config: ModelConfig) -> dict[str, Any]:
    mixture, mixed = config.experts, [i for i, x in enumerate(config.layers) if x.experts]
    said = render_as("Ernie4_5_Moe", "ernie4_5_moe")(config) | {
        "use_bias": False,
        "moe_layer_start_index": mixed[0] if mixed else config.num_layers,
        "moe_layer_end_index": mixed[-1] if mixed else config.num_layers,
        "moe_layer_interval": mixed[1] - mixed[0] if len(mixed) > 1 else 1,
    }
    if mixture is None:
        return said
    return said | {
        "moe_num_experts": mixture.count,
        "moe_k": mixture.chosen,
        "moe_intermediate_size": mixture.inner,
        "moe_num_shared_experts": mixture.shared // mixture.inner,
    }


def _gguf_given(fields: Fields) -> dict[str, Any]:
    """Check what a GGUF file says twice, and return what it leaves out."""
    shared = fields.size("moe_num_shared_experts", 0, minimum=0)
    inner = fields.size("moe_intermediate_size")
    if fields.has("shared_inner") and shared and fields.size("shared_inner") != inner * shared:
        raise fields.fault("shared_inner", f"{inner * shared}, of {shared} shared experts")
    return {
        "moe_num_shared_experts": shared,
        "moe_layer_start_index": fields.size("moe_layer_start_index", 0, minimum=0),
    }


ERNIE4_5 = replace(
    LLAMA,
    name="ernie4_5",
    model_types=("ernie4_5",),
    fields=DENSE
    | {
        "num_kv_heads": lambda f: f.size("num_key_value_heads", _KV_HEADS),
        "head_dim": lambda f: f.size("head_dim", _HEAD_DIM),
        "rotary": lambda f: read_rotary(f, "interleaved", _THETA),
        "norm_eps": lambda f: f.number("rms_norm_eps", _NORM_EPS),
        "tie_embeddings": lambda f: f.flag("tie_word_embeddings", True),
    },
    fixed={
        "hidden_act": ("silu", ""),
        "use_bias": (False, "executors have no biases in the MLP"),
    },
    render=_render,
    gguf=GgufSpelling(architecture="ernie4_5", style="interleaved"),
)
ERNIE4_5_MOE = replace(
    ERNIE4_5,
    name="ernie4_5_moe",
    model_types=("ernie4_5_moe",),
    fields={
        **ERNIE4_5.fields,
        "num_kv_heads": lambda f: f.size("num_key_value_heads", _MOE_KV_HEADS),
        "head_dim": DENSE["head_dim"],
        "layers": _layers,
        "experts": _experts,
    },
    fixed={
        **ERNIE4_5.fixed,
        "moe_norm_min": (_NORM_MIN, "a sum of shares that is smaller is in no published model"),
    },
    names=lambda config: _NAMES,
    # Which has an axis of one in files.
    shared=lambda config: frozenset(Role) - {Role.ROUTER_CORRECTION},
    surplus=lambda config, name: surplus(config, name) or name.startswith("model.mtp_"),
    render=_render_moe,
    gguf=GgufSpelling(
        architecture="ernie4_5-moe",
        style="interleaved",
        keys={
            "expert_count": "moe_num_experts",
            "expert_used_count": "moe_k",
            "expert_feed_forward_length": "moe_intermediate_size",
            "interleave_moe_layer_step": "moe_layer_interval",
        },
        optional={
            "leading_dense_block_count": "moe_layer_start_index",
            "expert_shared_count": "moe_num_shared_experts",
            "expert_shared_feed_forward_length": "shared_inner",
        },
        given=_gguf_given,
        experts=True,
    ),
)
