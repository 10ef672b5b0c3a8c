"""GLM-4.5 and later, mixtures: experts as in DeepSeek-V3; half of each head turns.

Norms of each head of queries and keys where ``use_qk_norm`` says so. Layers behind
``num_hidden_layers`` in the files predict tokens further ahead (_ahead.py).
"""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model.families._ahead import DEEPSEEK_AHEAD
from monolane.model.families._family import layer_count
from monolane.model.families._gguf import AHEAD, GGUF_NAMES, GgufSpelling, turned_part
from monolane.model.families._rotary import read_rotary
from monolane.model.families._sparse import (
    ROUTED,
    read_experts,
    read_gguf_sigmoids,
    render_experts,
)
from monolane.model.families.llama import DENSE, LLAMA, NAMES, read_layers, render_as, surplus
from monolane.ops import Experts, QkNorm, Role

_PART, _NORM_EPS = 0.5, 1e-5
_LAYER = "model.layers.{i}."
_NAMES = {
    **NAMES,
    **ROUTED,
    Role.Q_NORM: _LAYER + "self_attn.q_norm.weight",
    Role.K_NORM: _LAYER + "self_attn.k_norm.weight",
}


def _dense(fields: Fields) -> int:
    return fields.size("first_k_dense_replace", 1, minimum=0)


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    dense = _dense(fields)
    return tuple(replace(x, experts=i >= dense) for i, x in enumerate(read_layers(fields)))


def _experts(fields: Fields) -> Experts | None:
    if _dense(fields) >= layer_count(fields):
        return None
    count = fields.size(fields.first("n_routed_experts", "num_local_experts"), 128)
    return read_experts(fields, count, "n_shared_experts", chosen=8, inner=1408, scale=1.0)


def _gguf_given(fields: Fields) -> dict[str, Any]:
    """Return what the tensors say, and what a field means that a file leaves out."""
    return read_gguf_sigmoids(fields) | {
        "attention_bias": fields.flag("query_bias", False),
        "use_qk_norm": fields.flag("query_norm", False),
        "partial_rotary_factor": turned_part(fields),
    }


def _surplus(config: ModelConfig, name: str) -> bool:
    ahead = name.startswith(f"model.layers.{config.num_layers}.")
    return surplus(config, name) or ahead


def _render(config: ModelConfig) -> dict[str, Any]:
    said = render_as("Glm4Moe", "glm4_moe")(config) | {
        "attention_bias": config.qkv_bias,
        "partial_rotary_factor": config.rotary.part,
        "use_qk_norm": config.qk_norm is not None,
        "first_k_dense_replace": sum(not layer.experts for layer in config.layers),
    }
    return said | render_experts(config.experts, "n_routed_experts", "n_shared_experts")


GLM4_MOE = replace(
    LLAMA,
    name="glm4_moe",
    model_types=("glm4_moe",),
    fields=DENSE
    | {
        "layers": _layers,
        "experts": _experts,
        "rotary": lambda f: read_rotary(f, "half", part=_PART),
        "norm_eps": lambda f: f.number("rms_norm_eps", _NORM_EPS),
        "qkv_bias": lambda f: f.flag("attention_bias", False),
        "qk_norm": lambda f: QkNorm.HEAD if f.flag("use_qk_norm", False) else None,
    },
    fixed={"hidden_act": ("silu", "")},
    names=lambda config: _NAMES,
    surplus=_surplus,
    ahead=DEEPSEEK_AHEAD,
    render=_render,
    gguf=GgufSpelling(
        architecture="glm4moe",
        style="half",
        keys={
            "rope.dimension_count": "rope_dimension_count",
            "expert_count": "n_routed_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_count": "n_shared_experts",
        },
        optional={
            "leading_dense_block_count": "first_k_dense_replace",
            "expert_gating_func": "expert_gating_func",
            "expert_weights_scale": "routed_scaling_factor",
            "expert_weights_norm": "norm_topk_prob",
            "expert_group_count": "n_group",
            "expert_group_used_count": "topk_group",
            AHEAD: AHEAD,
        },
        given=_gguf_given,
        names=lambda config: {Role.MLP_NORM: GGUF_NAMES[Role.POST_ATTENTION_NORM]},
        experts=True,
    ),
)
