"""Mixtral: a Llama each of whose MLPs is a mixture of experts, whose weights add up to 1.

``sliding_window`` is of all layers, whatever ``layer_types`` says to others, and null in all that
were published. Where the epsilon of the norms or the rotary base is not there it means what
Transformers takes for it.
"""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._rotary import read_rotary
from monolane.model.families.llama import DENSE, LLAMA, NAMES, read_alike, render_as
from monolane.ops import Experts, Role

_THETA, _NORM_EPS = 1e6, 1e-5
_NAMES = NAMES | {
    Role.ROUTER: "model.layers.{i}.block_sparse_moe.gate.weight",
    Role.EXPERT_GATE: "model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight",
    Role.EXPERT_UP: "model.layers.{i}.block_sparse_moe.experts.{e}.w3.weight",
    Role.EXPERT_DOWN: "model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight",
}


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    plain = read_alike(fields, fields.optional_size("sliding_window"))
    return tuple(replace(layer, experts=True) for layer in plain)


def _experts(fields: Fields) -> Experts:
    return Experts(
        count=fields.size("num_local_experts", 8),
        chosen=fields.size("num_experts_per_tok", 2),
        inner=fields.size("intermediate_size"),
        normalised=True,
    )


def _render(config: ModelConfig) -> dict[str, Any]:
    assert config.experts is not None
    return render_as("Mixtral")(config) | {
        "num_local_experts": config.experts.count,
        "num_experts_per_tok": config.experts.chosen,
    }


MIXTRAL = replace(
    LLAMA,
    name="mixtral",
    model_types=("mixtral",),
    fields=DENSE
    | {
        "layers": _layers,
        "experts": _experts,
        "rotary": lambda f: read_rotary(f, "half", _THETA),
        "norm_eps": lambda f: f.number("rms_norm_eps", _NORM_EPS),
    },
    fixed={"hidden_act": ("silu", "")},
    names=lambda config: _NAMES,
    render=_render,
    gguf=GgufSpelling(
        architecture="llama",  # with experts
        style="interleaved",
        keys={"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
        experts=True,
    ),
)
