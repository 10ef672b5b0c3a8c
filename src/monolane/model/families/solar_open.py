"""Solar Open: a Llama of mixtures as in GLM-4.5, biases on queries, keys and values if any.

Where a field is not there it means what Transformers takes for it.
"""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model.families._family import with_defaults
from monolane.model.families._rotary import read_rotary
from monolane.model.families._sparse import ROUTED, read_experts, render_experts
from monolane.model.families.llama import DENSE, LLAMA, NAMES, read_layers, render_as
from monolane.ops import Experts

_INNER, _THETA = 1280, 1e6
_DEFAULTS: dict[str, Any] = {
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "intermediate_size": _INNER,  # of no layer: all are mixtures
}


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    return tuple(replace(layer, experts=True) for layer in read_layers(fields))


def _experts(fields: Fields) -> Experts:
    count = fields.size(fields.first("n_routed_experts", "num_local_experts"), 128)
    return read_experts(fields, count, "n_shared_experts", chosen=8, inner=_INNER, scale=1.0)


def _render(config: ModelConfig) -> dict[str, Any]:
    said = render_as("SolarOpen", "solar_open")(config) | {"attention_bias": config.qkv_bias}
    return said | render_experts(config.experts, "n_routed_experts", "n_shared_experts")


SOLAR_OPEN = replace(
    LLAMA,
    name="solar_open",
    model_types=("solar_open",),
    fields=DENSE
    | {
        "layers": _layers,
        "experts": _experts,
        "rotary": lambda f: read_rotary(f, "half", _THETA),
        "qkv_bias": lambda f: f.flag("attention_bias", False),
    },
    fixed={
        "hidden_act": ("silu", ""),
        "first_k_dense_replace": (0, "all layers of this family are mixtures"),
        "use_qk_norm": (False, "heads of this family are not normed"),
    },
    names=lambda config: {**NAMES, **ROUTED},
    render=_render,
    view=with_defaults(_DEFAULTS),
    gguf=None,  # in GGUF files it calls itself a GLM-4.5, and is read as that
)
