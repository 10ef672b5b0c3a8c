"""Qwen2 and Qwen2.5: a Llama with biases on queries, keys and values; windows if switched on."""

from dataclasses import replace
from typing import Any

from monolane.model._config import LayerConfig, ModelConfig
from monolane.model._fields import Fields
from monolane.model.families.llama import DENSE, LLAMA, at_once, read_windows, render_dense
from monolane.model.families.mistral import DEFAULT_WINDOW, render_windows


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    there = fields.flag("use_sliding_window", False)
    window = fields.size("sliding_window", DEFAULT_WINDOW) if there else None
    # The layers *before* this one have full attention, whatever the field's name suggests.
    first = fields.size("max_window_layers", 28, minimum=0)
    return at_once(read_windows(fields, window, first))


def render(config: ModelConfig) -> dict[str, Any]:
    """Write a config as config.json."""
    windows = render_windows(config) | {"max_window_layers": 0}
    windows["use_sliding_window"] = windows["sliding_window"] is not None
    return render_dense(config, "Qwen2") | windows


QWEN2 = replace(
    LLAMA,
    name="qwen2",
    model_types=("qwen2",),
    fields=DENSE | {"layers": _layers, "qkv_bias": lambda f: True},
    fixed={"hidden_act": ("silu", "")},
    render=render,
)
