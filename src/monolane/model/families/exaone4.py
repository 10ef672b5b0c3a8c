"""EXAONE 4: modules normed behind them alone, norms of each head; some layers with windows.

Where ``sliding_window`` is set, every ``sliding_window_pattern``-th layer, counted from 1, sees all
keys and does not turn queries and keys; where it is null all layers see all and turn.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model.families._family import layer_count
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._rotary import FULL, WINDOWED
from monolane.model.families.llama import DENSE, LLAMA, read_layers, render_as
from monolane.model.families.olmo2 import OLMO2
from monolane.ops import QkNorm

_WINDOW, _PATTERN = 4096, 4  # where the fields are not there


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    said = "sliding_window" in fields.raw
    window = fields.optional_size("sliding_window") if said else _WINDOW
    if window is None:
        return read_layers(fields)
    pattern = fields.size("sliding_window_pattern", _PATTERN)
    layers = read_layers(fields, window, lambda i: (i + 1) % pattern != 0)
    return tuple(
        layer if layer.window is not None else replace(layer, rotary="none") for layer in layers
    )


def _gguf_given(fields: Fields) -> dict[str, Any]:
    """Return which layers have a window, of a file that lists them; without a window none has."""
    count, listed = layer_count(fields), fields.raw.get("windowed_layers")
    if not fields.has("sliding_window"):
        return {"sliding_window": None, "layer_types": [FULL] * count}
    if listed is None:
        return {}
    if not isinstance(listed, np.ndarray) or listed.dtype != np.bool_ or len(listed) != count:
        raise fields.fault("windowed_layers", f"a list of {count} of true or false")
    return {"layer_types": [WINDOWED if x else FULL for x in listed.tolist()]}


def _render(config: ModelConfig) -> dict[str, Any]:
    return render_as("Exaone4")(config)


EXAONE4 = replace(
    OLMO2,
    name="exaone4",
    model_types=("exaone4",),
    fields=DENSE
    | {
        "layers": _layers,
        "norm_before": lambda f: False,
        "norm_after": lambda f: True,
        "norm_eps": lambda f: f.number("rms_norm_eps", 1e-5),
        "qk_norm": lambda f: QkNorm.HEAD,
    },
    fixed={"hidden_act": LLAMA.fixed["hidden_act"]},
    render=_render,
    gguf=GgufSpelling(
        architecture="exaone4",
        style="half",
        optional={
            "attention.sliding_window": "sliding_window",
            "attention.sliding_window_pattern": "windowed_layers",
        },
        given=_gguf_given,
    ),
)
