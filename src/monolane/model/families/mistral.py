"""Mistral: a Llama whose layers all have the window ``sliding_window``, which may be null.

Ministral, of which ``layer_types`` says which layers have it, and without that field all.
"""

from dataclasses import replace

from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model.families.llama import DENSE, LLAMA, read_layers, render_as

DEFAULT_WINDOW = 4096  # of Transformers, where the field is not there; null means none


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    there = "sliding_window" in fields.raw
    return read_layers(fields, fields.optional_size("sliding_window") if there else DEFAULT_WINDOW)


MISTRAL = replace(
    LLAMA,
    name="mistral",
    model_types=("mistral",),
    fields=DENSE | {"layers": _layers},
    fixed={**LLAMA.fixed, "attention_bias": (False, "a Mistral has no biases")},
    render=render_as("Mistral"),
    gguf=None,  # in GGUF files it calls itself a Llama, and has no windows
)
MINISTRAL = replace(
    MISTRAL, name="ministral", model_types=("ministral",), render=render_as("Ministral")
)
