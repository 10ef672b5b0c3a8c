"""OLMo 3: an OLMo 2 in which three of four layers have a window, and a rotary of their own.

Layers that see all keys have the stretch of ``rope_scaling``; those with a window have none.
"""

from dataclasses import replace
from typing import Any

from monolane.errors import ConfigError
from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model.families._rotary import FULL, WINDOWED, read_layer_rotary, write_layer_rotary
from monolane.model.families.exaone4 import read_windows
from monolane.model.families.llama import read_layers, render_as
from monolane.model.families.olmo2 import OLMO2

_WINDOW, _PATTERN, _THETA = 4096, 4, 5e5  # where the fields are not there


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    window = fields.size("sliding_window", _WINDOW)
    layers = read_layers(fields, window, lambda i: (i + 1) % _PATTERN != 0)
    return tuple(
        layer if layer.window is None else replace(layer, rotary="local") for layer in layers
    )


def _theta(fields: Fields) -> float:
    return fields.number("rope_theta", _THETA)


def _render(config: ModelConfig) -> dict[str, Any]:
    if config.local_rotary is None:
        raise ConfigError("local_rotary: expected one, as OLMo 3 has, got None")
    raw = render_as("Olmo3")(config)
    raw.pop("rope_theta", None)
    raw.pop("rope_scaling", None)
    return raw | write_layer_rotary(config.rotary, config.local_rotary)


def _gguf_given(fields: Fields) -> dict[str, Any]:
    """Return which layers have a window, and the rotary of both kinds."""
    full = dict(fields.raw.get("rope_scaling") or {"rope_type": "default"})
    base = _theta(fields)
    both = {
        FULL: full | {"rope_theta": base},
        WINDOWED: {"rope_theta": fields.number("rope_theta_swa", base)},
    }
    return {"rope_parameters": both, "rope_scaling": None, **read_windows(fields)}


_OLMO2_GGUF = OLMO2.gguf
assert _OLMO2_GGUF is not None
OLMO3 = replace(
    OLMO2,
    name="olmo3",
    model_types=("olmo3",),
    fields={
        **OLMO2.fields,
        "layers": _layers,
        "rotary": lambda f: read_layer_rotary(f, FULL, "half", _theta(f)),
        "local_rotary": lambda f: read_layer_rotary(f, WINDOWED, "half", _theta(f)),
    },
    render=_render,
    gguf=replace(
        _OLMO2_GGUF,
        windowed=True,
        keys={"attention.sliding_window": "sliding_window"},
        optional={
            "attention.sliding_window_pattern": "windowed_layers",
            "rope.freq_base_swa": "rope_theta_swa",
        },
        given=_gguf_given,
    ),
)
