"""Qwen3-MoE: a Qwen3 with mixtures of experts in all layers but those that config.json leaves out.

A layer is a mixture if ``decoder_sparse_step`` divides its number, counted from 1, and
``mlp_only_layers`` does not have it, counted from 0. Windows, if switched on, are of all layers.
"""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model.families._family import layer_count
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families.llama import read_alike, render_as
from monolane.model.families.mistral import DEFAULT_WINDOW
from monolane.model.families.qwen3 import QWEN3
from monolane.ops import Experts, Role

ROUTED = {
    Role.ROUTER: "model.layers.{i}.mlp.gate.weight",
    Role.EXPERT_GATE: "model.layers.{i}.mlp.experts.{e}.gate_proj.weight",
    Role.EXPERT_UP: "model.layers.{i}.mlp.experts.{e}.up_proj.weight",
    Role.EXPERT_DOWN: "model.layers.{i}.mlp.experts.{e}.down_proj.weight",
}


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    there = fields.flag("use_sliding_window", False)
    plain = read_alike(fields, fields.size("sliding_window", DEFAULT_WINDOW) if there else None)
    mixtures = mixtures_of(fields)
    return tuple(replace(layer, experts=i in mixtures) for i, layer in enumerate(plain))


def mixtures_of(fields: Fields) -> set[int]:
    """Return the layers that are mixtures."""
    count, step = layer_count(fields), fields.size("decoder_sparse_step", 1)
    dense = fields.layer_ids("mlp_only_layers", count) or set()
    return {i for i in range(count) if (i + 1) % step == 0} - dense


def read_experts(fields: Fields) -> Experts | None:
    """Return the sizes of the mixtures, by what Qwen calls them; None where there are none."""
    if not mixtures_of(fields):
        return None
    return Experts(
        # Transformers 5 may write the second name.
        count=fields.size(fields.first("num_experts", "num_local_experts"), 128),
        chosen=fields.size("num_experts_per_tok", 8),
        inner=fields.size("moe_intermediate_size", 768),
        normalised=fields.flag("norm_topk_prob", False),
    )


def render_mixtures(config: ModelConfig) -> dict[str, Any]:
    """Return what a config.json says of the mixtures."""
    dense = [i for i, layer in enumerate(config.layers) if not layer.experts]
    said: dict[str, Any] = {"decoder_sparse_step": 1, "mlp_only_layers": dense}
    mixture = config.experts
    return (
        said
        if mixture is None
        else said
        | {
            "num_experts": mixture.count,
            "num_experts_per_tok": mixture.chosen,
            "moe_intermediate_size": mixture.inner,
            "norm_topk_prob": mixture.normalised,
        }
    )


def _render(config: ModelConfig) -> dict[str, Any]:
    return render_as("Qwen3Moe", "qwen3_moe")(config) | render_mixtures(config)


QWEN3_MOE = replace(
    QWEN3,
    name="qwen3_moe",
    model_types=("qwen3_moe",),
    fields={**QWEN3.fields, "layers": _layers, "experts": read_experts},
    fixed={name: rule for name, rule in QWEN3.fixed.items() if name != "mlp_bias"},
    names=lambda config: {**QWEN3.names(config), **ROUTED},
    render=_render,
    gguf=GgufSpelling(
        architecture="qwen3moe",
        style="half",
        keys={
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
        },
        # llama.cpp has it so whatever the model: no field of the file says it.
        given=lambda fields: {"norm_topk_prob": True},
        experts=True,
    ),
)
