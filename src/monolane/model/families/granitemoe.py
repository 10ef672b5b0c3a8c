"""Granite 3's mixtures: a Granite each of whose MLPs is a mixture of experts.

In ``granitemoeshared`` there is an MLP beside it that all tokens share.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model.families.granite import GRANITE
from monolane.model.families.granitemoehybrid import GRANITEMOEHYBRID
from monolane.model.families.llama import read_layers
from monolane.ops import Experts

_SHARED = 1024  # of Transformers, where the field is not there


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    return tuple(replace(layer, experts=True) for layer in read_layers(fields))


def _experts(fields: Fields) -> Experts:
    return Experts(
        count=fields.size("num_local_experts", 8),
        chosen=fields.size("num_experts_per_tok", 2),
        inner=fields.size("intermediate_size"),
        normalised=True,  # softmax of the chosen ones' logits: the same
    )


def _with_shared(fields: Fields) -> Experts:
    return replace(
        _experts(fields), shared=fields.size("shared_intermediate_size", _SHARED, minimum=0)
    )


def _render_as(kind: str) -> Callable[[ModelConfig], dict[str, Any]]:
    def render(config: ModelConfig) -> dict[str, Any]:
        mixture = config.experts
        assert mixture is not None
        shared = {"shared_intermediate_size": mixture.shared} if kind.endswith("Shared") else {}
        said = GRANITE.render(config) | shared
        del said["sliding_window"], said["use_sliding_window"], said["layer_types"]
        return said | {
            "architectures": [f"{kind}ForCausalLM"],
            "model_type": kind.lower(),
            "num_local_experts": mixture.count,
            "num_experts_per_tok": mixture.chosen,
        }

    return render


_GRANITE_GGUF = GRANITE.gguf
assert _GRANITE_GGUF is not None
GRANITEMOE = replace(
    GRANITE,
    name="granitemoe",
    model_types=("granitemoe",),
    fields={**GRANITE.fields, "layers": _layers, "experts": _experts},
    fixed={"hidden_act": ("silu", "")},
    names=GRANITEMOEHYBRID.names,
    halves=True,
    render=_render_as("GraniteMoe"),
    gguf=None,
)
GRANITEMOESHARED = replace(
    GRANITEMOE,
    name="granitemoeshared",
    model_types=("granitemoeshared",),
    fields={**GRANITEMOE.fields, "experts": _with_shared},
    render=_render_as("GraniteMoeShared"),
    # Files of both: one that says nothing of an MLP that all tokens share has none.
    gguf=replace(
        _GRANITE_GGUF,
        architecture="granitemoe",
        keys={
            **_GRANITE_GGUF.keys,
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
        },
        optional={"expert_shared_feed_forward_length": "shared_intermediate_size"},
        given=lambda fields: {
            "shared_intermediate_size": fields.size("shared_intermediate_size", 0, minimum=0)
        },
        experts=True,
    ),
)
