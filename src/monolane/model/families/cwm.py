"""Code World Model: a Llama three of four of whose layers have a window, from the second on."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model.families.llama import DENSE, LLAMA, read_layers, render_as

# What Transformers takes where the fields are not there.
_DEFAULTS: Mapping[str, Any] = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "sliding_window": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
}
_STRETCH: Mapping[str, Any] = {
    "rope_type": "llama3",
    "factor": 16.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}
_PATTERN = 4


def _view(fields: Fields) -> Fields:
    there = {name: x for name, x in fields.raw.items() if x is not None}
    turned = any(name in there for name in ("rope_parameters", "rope_scaling"))
    stretch = {} if turned else {"rope_scaling": _STRETCH}
    return Fields({**_DEFAULTS, **stretch, **there}, fields.source, fields.spelled)


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    return read_layers(fields, fields.size("sliding_window"), lambda i: i % _PATTERN != 0)


def _render(config: ModelConfig) -> dict[str, Any]:
    # A stretch that is not said would be the default one.
    return {"rope_scaling": {"rope_type": "default"}} | render_as("Cwm")(config)


CWM = replace(
    LLAMA,
    name="cwm",
    model_types=("cwm",),
    fields=DENSE | {"layers": _layers},
    fixed={**LLAMA.fixed, "attention_bias": (False, "this family's files have no biases")},
    render=_render,
    view=_view,
    gguf=None,
)
