"""EXAONE 4: modules normed behind them alone, norms of each head; some layers with windows.

Where ``sliding_window`` is set, every ``sliding_window_pattern``-th layer, counted from 1, sees all
keys and does not turn queries and keys; where it is null all layers see all and turn.
"""

from dataclasses import replace
from typing import Any

from monolane.model._config import LayerConfig, ModelConfig
from monolane.model._fields import Fields
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
    gguf=None,
)
