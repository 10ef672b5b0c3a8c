"""OLMoE: a Llama with mixtures of experts; queries and keys are normed over all heads.

Where a field is not there it means what Transformers takes for it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families.llama import BIASES, DENSE, LLAMA, NAMES, read_layers, render_as
from monolane.model.families.qwen3_moe import ROUTED
from monolane.ops import Experts, QkNorm, Role

_NAMES = {
    **NAMES,
    **ROUTED,
    Role.Q_NORM: "model.layers.{i}.self_attn.q_norm.weight",
    Role.K_NORM: "model.layers.{i}.self_attn.k_norm.weight",
}


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    return tuple(replace(layer, experts=True) for layer in read_layers(fields))


def read_experts(fields: Fields, count: int = 64, chosen: int = 8) -> Experts:
    """Read the sizes of the mixtures; ``count`` and ``chosen`` where the fields are not there."""
    return Experts(
        # Transformers 5 may write the second name.
        count=fields.size(fields.first("num_experts", "num_local_experts"), count),
        chosen=fields.size("num_experts_per_tok", chosen),
        inner=fields.size("intermediate_size"),
        normalised=fields.flag("norm_topk_prob", False),
    )


def render_experts_as(
    kind: str, model_type: str | None = None
) -> Callable[[ModelConfig], dict[str, Any]]:
    """Return how to write such a family, as ``render_as`` does."""

    def render(config: ModelConfig) -> dict[str, Any]:
        assert config.experts is not None
        return render_as(kind, model_type)(config) | {
            "num_experts": config.experts.count,
            "num_experts_per_tok": config.experts.chosen,
            "norm_topk_prob": config.experts.normalised,
        }

    return render


OLMOE = replace(
    LLAMA,
    name="olmoe",
    model_types=("olmoe",),
    fields=DENSE
    | BIASES
    | {
        "layers": _layers,
        "experts": read_experts,
        "qk_norm": lambda f: QkNorm.ALL,
        "norm_eps": lambda f: f.number("rms_norm_eps", 1e-5),
    },
    fixed={
        "hidden_act": ("silu", ""),
        "clip_qkv": (None, "executors do not clip queries, keys and values"),
    },
    names=lambda config: _NAMES,
    render=render_experts_as("Olmoe"),
    gguf=GgufSpelling(
        architecture="olmoe",
        style="half",
        keys={"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"},
        given=lambda fields: {"norm_topk_prob": False},  # as llama.cpp has it
        experts=True,
    ),
)
