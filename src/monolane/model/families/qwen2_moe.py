"""Qwen2-MoE (Qwen1.5-MoE, Qwen2-57B-A14B): a Qwen2 with mixtures of experts.

Layers are mixtures as in Qwen3-MoE. Each has an MLP that all tokens share, whose output is
multiplied by the sigmoid of one more row's product. Windows, if switched on, are of every other
layer from the first on, before layer ``max_window_layers``.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families.llama import check_switched, read_layers, render_as
from monolane.model.families.mistral import DEFAULT_WINDOW
from monolane.model.families.qwen2 import QWEN2
from monolane.model.families.qwen3_moe import ROUTED, mixtures_of, read_experts, render_mixtures
from monolane.ops import Experts, Role

SHARED = {
    Role.SHARED_GATE: "model.layers.{i}.mlp.shared_expert.gate_proj.weight",
    Role.SHARED_UP: "model.layers.{i}.mlp.shared_expert.up_proj.weight",
    Role.SHARED_DOWN: "model.layers.{i}.mlp.shared_expert.down_proj.weight",
    Role.SHARED_EXPERT_GATE: "model.layers.{i}.mlp.shared_expert_gate.weight",
}
# What a config.json that leaves them out means.
_SIZES = {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}


def _view(fields: Fields) -> Fields:
    there = {name: value for name, value in fields.raw.items() if value is not None}
    return Fields({**_SIZES, **there}, fields.source, fields.spelled)


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    there = fields.flag("use_sliding_window", False)
    last = fields.size("max_window_layers", 28, minimum=0)
    # Transformers writes 0 for the window where it is off.
    window = fields.size("sliding_window", DEFAULT_WINDOW) if there else DEFAULT_WINDOW
    plain = read_layers(fields, window, lambda i: there and i % 2 == 0 and i < last)
    check_switched(fields, plain)
    mixtures = mixtures_of(fields)
    return tuple(replace(layer, experts=i in mixtures) for i, layer in enumerate(plain))


def _experts(fields: Fields) -> Experts | None:
    plain = read_experts(fields)
    shared = fields.size("shared_expert_intermediate_size", 5632)
    return None if plain is None else replace(plain, shared=shared, shared_expert_gate=True)


def _render(config: ModelConfig) -> dict[str, Any]:
    said = render_as("Qwen2Moe", "qwen2_moe")(config) | {"qkv_bias": config.qkv_bias}
    if config.experts is not None:
        said["shared_expert_intermediate_size"] = config.experts.shared
    return said | render_mixtures(config)


def _gguf_given(fields: Fields) -> Mapping[str, Any]:
    """Return what the file leaves to its readers: as llama.cpp has it, also of older files."""
    inner = fields.size("intermediate_size")
    return {
        "norm_topk_prob": False,
        "moe_intermediate_size": fields.size(
            "moe_intermediate_size", max(1, inner // fields.size("num_experts_per_tok"))
        ),
        "shared_expert_intermediate_size": fields.size("shared_expert_intermediate_size", inner),
    }


QWEN2_MOE = replace(
    QWEN2,
    name="qwen2_moe",
    model_types=("qwen2_moe",),
    fields={
        **QWEN2.fields,
        "layers": _layers,
        "qkv_bias": lambda f: f.flag("qkv_bias", True),
        "experts": _experts,
    },
    names=lambda config: {**QWEN2.names(config), **ROUTED, **SHARED},
    # The one tensor with an axis in the lanes' place: a matrix of one row.
    shared=lambda config: frozenset(Role) - {Role.SHARED_EXPERT_GATE},
    render=_render,
    view=_view,
    gguf=GgufSpelling(
        architecture="qwen2moe",
        style="half",
        keys={"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"},
        optional={
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        },
        given=_gguf_given,
        experts=True,
    ),
)
