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
from monolane.model.families._gguf import AHEAD, GgufSpelling
from monolane.model.families._sparse import (
    DENSE,
    ROUTED,
    SPARSE,
    read_experts,
    read_gguf_sigmoids,
    read_sparse,
    render_experts,
)
from monolane.model.families.exaone4 import EXAONE4, read_layers, read_windows
from monolane.model.families.llama import LLAMA, NAMES, render_as, surplus
from monolane.ops import Experts, Role

_LAYER = "model.layers.{i}."
_NAMES = {
    **NAMES,
    **ROUTED,
    Role.Q_NORM: _LAYER + "self_attn.q_norm.weight",
    Role.K_NORM: _LAYER + "self_attn.k_norm.weight",
    Role.ROUTER_CORRECTION: _LAYER + "mlp.e_score_correction_bias",
}


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    both = zip(read_layers(fields), read_sparse(fields), strict=True)
    return tuple(replace(layer, experts=mixed) for layer, mixed in both)


def _experts(fields: Fields) -> Experts | None:
    if not any(read_sparse(fields)):
        return None
    count = fields.size("num_experts", 64)
    return read_experts(fields, count, "num_shared_experts", chosen=8, inner=1024, scale=2.5)


def _render(config: ModelConfig) -> dict[str, Any]:
    said = render_as("ExaoneMoe", "exaone_moe")(config)
    said["mlp_layer_types"] = [SPARSE if x.experts else DENSE for x in config.layers]
    return said | render_experts(config.experts, "num_experts", "num_shared_experts")


def _gguf_given(fields: Fields) -> dict[str, Any]:
    """Return what the tensors say, and what a field means that a file leaves out."""
    return {
        **read_gguf_sigmoids(fields),
        "routed_scaling_factor": fields.number("routed_scaling_factor", 1.0),
        **read_windows(fields, fields.size(AHEAD, 0)),
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
