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
from monolane.model.families.llama import DENSE, LLAMA, render_as
from monolane.model.families.llama import read_layers as read_plain
from monolane.model.families.olmo2 import OLMO2
from monolane.ops import QkNorm

_WINDOW, _PATTERN = 4096, 4  # where the fields are not there


def _pattern(fields: Fields) -> int:
    """Return of how many layers one sees all keys; files say "LLLG" or 4."""
    said = fields.raw.get("sliding_window_pattern")
    if isinstance(said, str) and said and said == "L" * (len(said) - 1) + "G":
        return len(said)
    return fields.size("sliding_window_pattern", _PATTERN)


def read_layers(fields: Fields) -> tuple[LayerConfig, ...]:
    """Return layers: with windows, in which queries and keys turn, and without, where not."""
    said = "sliding_window" in fields.raw
    window = fields.optional_size("sliding_window") if said else _WINDOW
    if window is None:
        return read_plain(fields)
    pattern = _pattern(fields)
    layers = read_plain(fields, window, lambda i: (i + 1) % pattern != 0)
    return tuple(
        layer if layer.window is not None else replace(layer, rotary="none") for layer in layers
    )


def read_windows(fields: Fields, ahead: int = 0) -> dict[str, Any]:
    """Return which layers have a window, of a GGUF file that lists them; without one none has.

    It may list the last ``ahead`` blocks too, which are not read.
    """
    count, listed = layer_count(fields), fields.raw.get("windowed_layers")
    if not fields.has("sliding_window"):
        return {"sliding_window": None, "layer_types": [FULL] * (count - ahead)}
    if listed is None:
        return {}
    lengths = (count, count - ahead)
    known = isinstance(listed, np.ndarray) and listed.dtype == np.bool_
    if not known or len(listed) not in lengths:
        raise fields.fault("windowed_layers", f"a list of {count - ahead} of true or false")
    kinds = [WINDOWED if x else FULL for x in listed.tolist()]
    return {"layer_types": kinds[: count - ahead]}


def _render(config: ModelConfig) -> dict[str, Any]:
    return render_as("Exaone4")(config)


EXAONE4 = replace(
    OLMO2,
    name="exaone4",
    model_types=("exaone4",),
    fields=DENSE
    | {
        "layers": read_layers,
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
        given=read_windows,
    ),
)
