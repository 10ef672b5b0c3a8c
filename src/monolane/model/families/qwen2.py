"""Qwen2 and Qwen2.5: a Llama with biases on queries, keys and values; windows if switched on."""

from dataclasses import replace

from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families.llama import DENSE, LLAMA, read_layers, render_as
from monolane.model.families.mistral import DEFAULT_WINDOW


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    there = fields.flag("use_sliding_window", False)
    # The layers *before* this one have full attention, whatever the field's name suggests.
    first = fields.size("max_window_layers", 28, minimum=0)
    window = fields.size("sliding_window", DEFAULT_WINDOW) if there else None
    return read_layers(fields, window, lambda i: i >= first)


QWEN2 = replace(
    LLAMA,
    name="qwen2",
    model_types=("qwen2",),
    fields=DENSE | {"layers": _layers, "qkv_bias": lambda f: True},
    fixed={"hidden_act": ("silu", "")},
    render=render_as("Qwen2"),
    gguf=GgufSpelling(architecture="qwen2", style="half"),
)
