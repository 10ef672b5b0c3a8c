"""dots.llm1: a Qwen3 whose later layers are mixtures as in DeepSeek-V3.

Where ``sliding_window`` is not null, layers from ``max_window_layers`` on have it.
"""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model.families._family import with_defaults
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._sparse import ROUTED, read_gguf_sigmoids, read_sparse, render_experts
from monolane.model.families.deepseek import DEEPSEEK_V3
from monolane.model.families.llama import read_layers, render_as
from monolane.model.families.mistral import DEFAULT_WINDOW
from monolane.model.families.qwen3 import QWEN3

_WINDOWED_FROM = 62  # of Transformers, where the field is not there
_DEFAULTS: dict[str, Any] = {
    "first_k_dense_replace": 0,
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
}


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    there = "sliding_window" in fields.raw
    window = fields.optional_size("sliding_window") if there else DEFAULT_WINDOW
    first = fields.size("max_window_layers", _WINDOWED_FROM, minimum=0)
    plain = read_layers(fields, window, lambda i: i >= first)
    both = zip(plain, read_sparse(fields), strict=True)
    return tuple(replace(layer, experts=mixed) for layer, mixed in both)


def _render(config: ModelConfig) -> dict[str, Any]:
    said = render_as("Dots1")(config)
    said["first_k_dense_replace"] = sum(not layer.experts for layer in config.layers)
    return said | render_experts(config.experts, "n_routed_experts", "n_shared_experts")


DOTS1 = replace(
    QWEN3,
    name="dots1",
    model_types=("dots1",),
    fields={**QWEN3.fields, "layers": _layers, "experts": DEEPSEEK_V3.fields["experts"]},
    fixed={
        "hidden_act": ("silu", ""),
        "mlp_layer_types": (None, "first_k_dense_replace says which layers are mixtures"),
        "moe_layer_freq": (1, "all layers behind the dense ones are mixtures"),
    },
    names=lambda config: {**QWEN3.names(config), **ROUTED},
    render=_render,
    view=with_defaults(_DEFAULTS),
    gguf=GgufSpelling(
        architecture="dots1",
        style="half",
        keys={
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
        },
        given=lambda fields: read_gguf_sigmoids(fields) | {"sliding_window": None},
        experts=True,
    ),
)
