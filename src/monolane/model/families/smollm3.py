"""SmolLM3: a Llama in which some layers, as a rule every fourth, do not turn queries and keys."""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model.families._family import layer_count
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._rotary import read_rotary
from monolane.model.families.llama import (
    BIASES,
    DENSE,
    LLAMA,
    check_switched,
    read_layers,
    render_as,
)

_THETA = 2e6  # this and the tied head are what Transformers takes where the fields are not there


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    turned = read_turned(fields)
    window = fields.optional_size("sliding_window")
    there = window is not None and fields.flag("use_sliding_window", False)
    layers = read_layers(fields, window, lambda i: there and not turned[i])
    check_switched(fields, layers)
    return tuple(
        replace(layer, rotary="main" if turns else "none")
        for layer, turns in zip(layers, turned, strict=True)
    )


def read_turned(fields: Fields) -> list[bool]:
    """Return for each layer whether queries and keys turn, for which the field has a 1."""
    count, turned = layer_count(fields), fields.raw.get("no_rope_layers")
    if turned is None:
        interval = fields.size("no_rope_layer_interval", 4)
        return [(i + 1) % interval != 0 for i in range(count)]
    known = isinstance(turned, list) and all(type(x) is int and x in (0, 1) for x in turned)
    if not known or len(turned) < count:
        expected = f"a list of {count} numbers, one a layer: 1 with rotary, 0 without"
        raise fields.fault("no_rope_layers", expected)
    return [x == 1 for x in turned[:count]]


def _render(config: ModelConfig) -> dict[str, Any]:
    turned = [int(layer.rotary != "none") for layer in config.layers]
    return render_as("SmolLM3")(config) | {"no_rope_layers": turned}


SMOLLM3 = replace(
    LLAMA,
    name="smollm3",
    model_types=("smollm3",),
    fields=DENSE
    | BIASES
    | {
        "layers": _layers,
        "rotary": lambda f: read_rotary(f, "half", _THETA),
        "tie_embeddings": lambda f: f.flag("tie_word_embeddings", True),
    },
    render=_render,
    gguf=GgufSpelling(architecture="smollm3", style="interleaved"),
)
