"""Mistral: a Llama whose layers all have the window ``sliding_window``, which may be null."""

from dataclasses import replace
from typing import Any

from monolane.model._config import LayerConfig, ModelConfig
from monolane.model._fields import Fields
from monolane.model.families.llama import DENSE, LLAMA, at_once, read_windows, render_dense

DEFAULT_WINDOW = 4096  # of Transformers, where the field is not there; null means none


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    there = "sliding_window" in fields.raw
    window = fields.optional_size("sliding_window") if there else DEFAULT_WINDOW
    return at_once(read_windows(fields, window))


def render(config: ModelConfig) -> dict[str, Any]:
    """Write a config as config.json."""
    return render_dense(config, "Mistral") | render_windows(config)


def render_windows(config: ModelConfig) -> dict[str, Any]:
    """Write the layers' windows as ``sliding_window`` and ``layer_types``."""
    windows = [layer.window for layer in config.layers]
    kinds = ["sliding_attention" if window else "full_attention" for window in windows]
    return {"sliding_window": max(filter(None, windows), default=None), "layer_types": kinds}


MISTRAL = replace(
    LLAMA,
    name="mistral",
    model_types=("mistral",),
    fields=DENSE | {"layers": _layers},
    render=render,
)
