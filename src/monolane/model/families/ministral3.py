"""Ministral 3, and what is called Mistral 3: a Mistral with YaRN, whose queries grow by position.

    ministral3   the text model by itself
    mistral3     with a vision tower, which is not read; inside is a Ministral 3 or, in Mistral
                 Small 3, a Mistral; of a Mistral 4 see mistral4.py

``llama_4_scaling_beta`` of the stretch says how fast queries grow: see
ops/attention/temperature.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._nested import with_tower
from monolane.model.families.llama import DENSE, LLAMA, read_alike, render_as
from monolane.model.families.mistral import DEFAULT_WINDOW, MISTRAL
from monolane.ops import Temperature

GROWTH, CONTEXT = "llama_4_scaling_beta", "original_max_position_embeddings"
# What Transformers takes where the fields are not there.
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    CONTEXT: 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    GROWTH: 0.1,
}
_MINISTRAL: dict[str, Any] = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
}
_MISTRAL: dict[str, Any] = {
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "sliding_window": DEFAULT_WINDOW,
}
_INSIDE = ("ministral3", "mistral", "mistral4")  # the last one is in mistral4.py


def _view(fields: Fields) -> Fields:
    plain = fields.choice("model_type", _INSIDE, _INSIDE[0]) == "mistral"
    there = {k: x for k, x in fields.raw.items() if x is not None or k == "sliding_window"}
    if not (plain or "rope_parameters" in there or "rope_scaling" in there):
        there["rope_parameters"] = _YARN
    return Fields({**(_MISTRAL if plain else _MINISTRAL), **there}, fields.source, fields.spelled)


def read_temperature(fields: Fields) -> Temperature | None:
    """Read how fast queries grow; null and 0: they do not."""
    inner = fields.nested(fields.first("rope_parameters", "rope_scaling"))
    if inner is None or inner.raw.get(GROWTH) in (None, 0):
        return None
    return Temperature(inner.number(GROWTH), inner.size(CONTEXT))


def render_temperature(config: ModelConfig, stretch: dict[str, Any] | None) -> dict[str, Any]:
    """Write a stretch, where there is one, and how fast queries grow, as one object."""
    growing, said = config.attention_temperature, stretch or {"rope_type": "default"}
    if growing is None:
        return said
    return {**said, GROWTH: growing.growth, CONTEXT: growing.context}


def _render(config: ModelConfig) -> dict[str, Any]:
    said = render_as("Ministral3")(config)
    return said | {"rope_scaling": render_temperature(config, said.get("rope_scaling"))}


def _gguf_given(fields: Fields) -> dict[str, Any]:
    """Return the stretch, of which a file says little: none where it says none."""
    stretch = fields.raw.get("rope_scaling") or {"rope_type": "default"}
    if fields.has("log_multiplier"):  # of all dimensions, and mscale is 1
        stretch = {**stretch, "mscale": 1.0, "mscale_all_dim": fields.raw["log_multiplier"]}
    if fields.has("temperature_scale"):
        stretch = {**stretch, GROWTH: fields.raw["temperature_scale"]}
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    return {
        "rope_scaling": stretch,
        "head_dim": fields.size("head_dim", max(1, hidden // heads)),
    }


MINISTRAL3 = replace(
    LLAMA,
    name="ministral3",
    model_types=("ministral3",),
    fields=DENSE
    | {
        "layers": lambda f: read_alike(f, f.optional_size("sliding_window")),
        "attention_temperature": read_temperature,
    },
    fixed=MISTRAL.fixed,
    render=_render,
    view=_view,
    gguf=GgufSpelling(
        architecture="mistral3",
        style="interleaved",
        optional={
            "attention.temperature_scale": "temperature_scale",
            "rope.scaling.yarn_log_multiplier": "log_multiplier",
        },
        given=_gguf_given,
    ),
)
# The model around the text, as ``with_tower`` takes it.
OUTSIDE: Mapping[str, Any] = {
    "model_type": "mistral3",
    "architecture": "Mistral3ForConditionalGeneration",
    "prefix": ("", "language_model."),
    "others": ("vision_tower.", "multi_modal_projector."),
}
MISTRAL3 = with_tower(MINISTRAL3, **OUTSIDE)
