"""GLM-4.5 and later, mixtures: experts as in DeepSeek-V3; half of each head turns.

Norms of each head of queries and keys where ``use_qk_norm`` says so. Layers behind
``num_hidden_layers`` in the files predict tokens further ahead; they are not read.
"""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model.families._family import layer_count
from monolane.model.families._gguf import AHEAD, GGUF_NAMES, GgufSpelling, turned_part
from monolane.model.families._rotary import read_rotary
from monolane.model.families.llama import DENSE, LLAMA, NAMES, read_layers, render_as, surplus
from monolane.ops import Experts, QkNorm, Role

_PART, _NORM_EPS = 0.5, 1e-5
_LAYER = "model.layers.{i}."
_MLP = _LAYER + "mlp."
_NAMES = {
    **NAMES,
    Role.Q_NORM: _LAYER + "self_attn.q_norm.weight",
    Role.K_NORM: _LAYER + "self_attn.k_norm.weight",
    Role.ROUTER: _MLP + "gate.weight",
    Role.ROUTER_CORRECTION: _MLP + "gate.e_score_correction_bias",
    Role.EXPERT_GATE: _MLP + "experts.{e}.gate_proj.weight",
    Role.EXPERT_UP: _MLP + "experts.{e}.up_proj.weight",
    Role.EXPERT_DOWN: _MLP + "experts.{e}.down_proj.weight",
    Role.SHARED_GATE: _MLP + "shared_experts.gate_proj.weight",
    Role.SHARED_UP: _MLP + "shared_experts.up_proj.weight",
    Role.SHARED_DOWN: _MLP + "shared_experts.down_proj.weight",
}


def _dense(fields: Fields) -> int:
    return fields.size("first_k_dense_replace", 1, minimum=0)


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    dense = _dense(fields)
    return tuple(replace(x, experts=i >= dense) for i, x in enumerate(read_layers(fields)))


def _experts(fields: Fields) -> Experts | None:
    if _dense(fields) >= layer_count(fields):
        return None
    inner, groups = fields.size("moe_intermediate_size", 1408), fields.size("n_group", 1)
    count = fields.size(fields.first("n_routed_experts", "num_local_experts"), 128)
    return Experts(
        count=count,
        chosen=fields.size("num_experts_per_tok", 8),
        inner=inner,
        normalised=fields.flag("norm_topk_prob", True),
        scores="sigmoid",
        corrected=True,
        groups=groups,
        chosen_groups=fields.size("topk_group", 1),
        group_best=min(2, count // groups),
        scale=fields.number("routed_scaling_factor", 1.0),
        shared=inner * fields.size("n_shared_experts", 1, minimum=0),
    )


def _gguf_given(fields: Fields) -> dict[str, Any]:
    """Return what the tensors say, and what a field means that a file leaves out."""
    fields.fixed("expert_gating_func", 2, "experts of this family are chosen by sigmoids")
    blocks, ahead = layer_count(fields), fields.size(AHEAD, 0)
    if ahead >= blocks:
        raise fields.fault(AHEAD, f"fewer than all {blocks} blocks")
    return {
        "num_hidden_layers": blocks - ahead,
        "first_k_dense_replace": fields.size("first_k_dense_replace", 0, minimum=0),
        "norm_topk_prob": fields.flag("norm_topk_prob", False),
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
    mixture = config.experts
    if mixture is None:
        return said
    return said | {
        "n_routed_experts": mixture.count,
        "num_experts_per_tok": mixture.chosen,
        "moe_intermediate_size": mixture.inner,
        "n_shared_experts": mixture.shared // mixture.inner,
        "n_group": mixture.groups,
        "topk_group": mixture.chosen_groups,
        "norm_topk_prob": mixture.normalised,
        "routed_scaling_factor": mixture.scale,
    }


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
