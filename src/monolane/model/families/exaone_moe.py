"""K-EXAONE: EXAONE 4's attention, normed before modules, and mixtures as in DeepSeek-V3.

Layers from ``first_k_dense_replace`` on are mixtures, or those that ``mlp_layer_types`` calls
sparse. Tensors "mtp.", which predict tokens further ahead, are not read; in GGUF files they are the
last blocks.
"""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model.families._family import layer_count
from monolane.model.families._gguf import AHEAD, GgufSpelling
from monolane.model.families._sparse import DENSE, SPARSE, read_sparse
from monolane.model.families.exaone4 import EXAONE4, read_layers, read_windows
from monolane.model.families.llama import LLAMA, NAMES, render_as, surplus
from monolane.ops import Experts, Role

_LAYER = "model.layers.{i}."
_MLP = _LAYER + "mlp."
_NAMES = {
    **NAMES,
    Role.Q_NORM: _LAYER + "self_attn.q_norm.weight",
    Role.K_NORM: _LAYER + "self_attn.k_norm.weight",
    Role.ROUTER: _MLP + "gate.weight",
    Role.ROUTER_CORRECTION: _MLP + "e_score_correction_bias",
    Role.EXPERT_GATE: _MLP + "experts.{e}.gate_proj.weight",
    Role.EXPERT_UP: _MLP + "experts.{e}.up_proj.weight",
    Role.EXPERT_DOWN: _MLP + "experts.{e}.down_proj.weight",
    Role.SHARED_GATE: _MLP + "shared_experts.gate_proj.weight",
    Role.SHARED_UP: _MLP + "shared_experts.up_proj.weight",
    Role.SHARED_DOWN: _MLP + "shared_experts.down_proj.weight",
}


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    both = zip(read_layers(fields), read_sparse(fields), strict=True)
    return tuple(replace(layer, experts=mixed) for layer, mixed in both)


def _experts(fields: Fields) -> Experts | None:
    if not any(read_sparse(fields)):
        return None
    count, inner = fields.size("num_experts", 64), fields.size("moe_intermediate_size", 1024)
    groups = fields.size("n_group", 1)
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
        scale=fields.number("routed_scaling_factor", 2.5),
        shared=inner * fields.size("num_shared_experts", 1, minimum=0),
    )


def _render(config: ModelConfig) -> dict[str, Any]:
    said = render_as("ExaoneMoe", "exaone_moe")(config)
    said["mlp_layer_types"] = [SPARSE if x.experts else DENSE for x in config.layers]
    mixture = config.experts
    if mixture is None:
        return said
    return said | {
        "num_experts": mixture.count,
        "num_experts_per_tok": mixture.chosen,
        "moe_intermediate_size": mixture.inner,
        "num_shared_experts": mixture.shared // mixture.inner,
        "n_group": mixture.groups,
        "topk_group": mixture.chosen_groups,
        "norm_topk_prob": mixture.normalised,
        "routed_scaling_factor": mixture.scale,
    }


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
        "routed_scaling_factor": fields.number("routed_scaling_factor", 1.0),
        **read_windows(fields, ahead),
    }


EXAONE_MOE = replace(
    EXAONE4,
    name="exaone_moe",
    model_types=("exaone_moe",),
    fields={
        **{k: x for k, x in EXAONE4.fields.items() if k not in ("norm_before", "norm_after")},
        "layers": _layers,
        "experts": _experts,
    },
    fixed={"hidden_act": LLAMA.fixed["hidden_act"]},
    names=lambda config: _NAMES,
    surplus=lambda config, name: surplus(config, name) or name.startswith("mtp."),
    render=_render,
    gguf=GgufSpelling(
        architecture="exaone-moe",
        style="half",
        keys={
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
        },
        optional={
            "attention.sliding_window": "sliding_window",
            "attention.sliding_window_pattern": "windowed_layers",
            "leading_dense_block_count": "first_k_dense_replace",
            "expert_shared_count": "num_shared_experts",
            "expert_shared_feed_forward_length": "shared_inner",
            "expert_gating_func": "expert_gating_func",
            "expert_weights_scale": "routed_scaling_factor",
            "expert_weights_norm": "norm_topk_prob",
            AHEAD: AHEAD,
        },
        given=_gguf_given,
        experts=True,
    ),
)
