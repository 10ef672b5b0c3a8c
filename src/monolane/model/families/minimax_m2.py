"""MiniMax-M2: mixtures in all layers, chosen by sigmoids with a correction; norms of all heads.

Of a head's numbers the first ``rotary_dim`` turn, or ``partial_rotary_factor`` of them.
"""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model._rotary import Rotary
from monolane.model.families._gguf import GgufSpelling, turned_part
from monolane.model.families._rotary import read_rotary
from monolane.model.families.llama import DENSE, LLAMA, NAMES, read_layers, render_as
from monolane.ops import Experts, QkNorm, Role

_THETA, _HEAD_DIM, _ONE = 5e6, 128, 1.0
_LAYER = "model.layers.{i}."
_MLP = _LAYER + "block_sparse_moe."
_NAMES = {
    **NAMES,
    Role.Q_NORM: _LAYER + "self_attn.q_norm.weight",
    Role.K_NORM: _LAYER + "self_attn.k_norm.weight",
    Role.ROUTER: _MLP + "gate.weight",
    Role.ROUTER_CORRECTION: _MLP + "e_score_correction_bias",
    Role.EXPERT_GATE: _MLP + "experts.{e}.w1.weight",
    Role.EXPERT_UP: _MLP + "experts.{e}.w3.weight",
    Role.EXPERT_DOWN: _MLP + "experts.{e}.w2.weight",
}


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    return tuple(replace(layer, experts=True) for layer in read_layers(fields))


def _experts(fields: Fields) -> Experts:
    return Experts(
        count=fields.size(fields.first("num_local_experts", "num_experts"), 256),
        chosen=fields.size("num_experts_per_tok", 8),
        inner=fields.size("intermediate_size"),
        normalised=True,
        scores="sigmoid",
        corrected=True,
    )


def _rotary(fields: Fields) -> Rotary:
    turned = fields.optional_size("rotary_dim")
    part = _ONE if turned is None else turned / fields.size("head_dim", _HEAD_DIM)
    return read_rotary(fields, "half", _THETA, part=part)


def _gguf_given(fields: Fields) -> dict[str, Any]:
    fields.fixed("expert_gating_func", 2, "experts of this family are chosen by sigmoids")
    return {
        "intermediate_size": fields.size("expert_inner"),
        "partial_rotary_factor": turned_part(fields),
    }


def _render(config: ModelConfig) -> dict[str, Any]:
    assert config.experts is not None
    return render_as("MiniMaxM2", "minimax_m2")(config) | {
        "partial_rotary_factor": config.rotary.part,
        "num_local_experts": config.experts.count,
        "num_experts_per_tok": config.experts.chosen,
    }


MINIMAX_M2 = replace(
    LLAMA,
    name="minimax_m2",
    model_types=("minimax_m2",),
    fields=DENSE
    | {
        "head_dim": lambda f: f.size("head_dim", _HEAD_DIM),
        "layers": _layers,
        "experts": _experts,
        "rotary": _rotary,
        "qk_norm": lambda f: QkNorm.ALL,
    },
    fixed={"hidden_act": ("silu", "")},
    names=lambda config: _NAMES,
    render=_render,
    gguf=GgufSpelling(
        architecture="minimax-m2",
        style="half",
        keys={
            "rope.dimension_count": "rope_dimension_count",
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "expert_inner",
        },
        optional={"expert_gating_func": "expert_gating_func"},
        given=_gguf_given,
        experts=True,
    ),
)
