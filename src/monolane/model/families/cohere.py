"""Cohere's Command: LayerNorm without biases, of which attention and MLP both read what it says.

    cohere    Command-R: all layers turn and see all keys
    cohere2   Command-R7B, Command-A: every fourth layer sees all keys and does not turn, the others
              have a window

Rotary pairs are neighbours, and logits are scaled. Where a field is not there it means what
Transformers takes for it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig, ModuleConfig, ModuleName
from monolane.model.families._family import render_common
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._rotary import FULL, WINDOWED, read_rotary
from monolane.model.families.llama import BIASES, DENSE, LLAMA, read_layers

_WINDOW, _PATTERN, _NORM_EPS, _LOGIT_SCALE = 4096, 4, 1e-5, 0.0625
_THETAS = {"cohere": 5e5, "cohere2": 1e4}
_BESIDE: tuple[ModuleName | ModuleConfig, ...] = (
    "attention",
    ModuleConfig("mlp", beside=True, same_norm=True),
)


def _plain_layers(fields: Fields) -> tuple[LayerConfig, ...]:
    return tuple(replace(layer, modules=_BESIDE) for layer in read_layers(fields))


def _windowed_layers(fields: Fields) -> tuple[LayerConfig, ...]:
    pattern = fields.size("sliding_window_pattern", _PATTERN)
    window = fields.size("sliding_window", _WINDOW)
    return tuple(
        replace(layer, modules=_BESIDE, rotary="none" if layer.window is None else "main")
        for layer in read_layers(fields, window, lambda i: (i + 1) % pattern != 0)
    )


def _render(kind: str) -> Callable[[ModelConfig], dict[str, Any]]:
    def render(config: ModelConfig) -> dict[str, Any]:
        raw = render_common(config, f"{kind}ForCausalLM", kind.lower()) | {
            "hidden_act": "silu",
            "head_dim": config.head_dim,
            "layer_norm_eps": config.norm_eps,
            "logit_scale": config.logit_scale,
        }
        if config.out_bias:
            raw["attention_bias"] = True
        windows = [layer.window for layer in config.layers]
        if any(windows):
            raw["sliding_window"] = max(filter(None, windows))
        if kind == "Cohere2":
            raw["layer_types"] = [WINDOWED if x else FULL for x in windows]
        return raw

    return render


_GGUF = GgufSpelling(
    architecture="command-r",
    style="interleaved",
    keys={"attention.layer_norm_epsilon": "layer_norm_eps", "logit_scale": "logit_scale"},
)

COHERE = replace(
    LLAMA,
    name="cohere",
    model_types=("cohere",),
    fields=DENSE
    | BIASES
    | {
        "layers": _plain_layers,
        "rotary": lambda f: read_rotary(f, "interleaved", _THETAS["cohere"]),
        "norm_eps": lambda f: f.number("layer_norm_eps", _NORM_EPS),
        "norm_centred": lambda f: True,
        "logit_scale": lambda f: f.number("logit_scale", _LOGIT_SCALE),
        "tie_embeddings": lambda f: f.flag("tie_word_embeddings", True),
    },
    fixed={
        "hidden_act": ("silu", ""),
        "use_qk_norm": (False, "executors have no LayerNorm of heads"),
    },
    render=_render("Cohere"),
    gguf=_GGUF,
)
COHERE2 = replace(
    COHERE,
    name="cohere2",
    model_types=("cohere2",),
    fields={
        **COHERE.fields,
        "layers": _windowed_layers,
        "rotary": lambda f: read_rotary(f, "interleaved", _THETAS["cohere2"]),
    },
    fixed={"hidden_act": ("silu", "")},
    render=_render("Cohere2"),
    gguf=replace(
        _GGUF,
        architecture="cohere2",
        keys={**_GGUF.keys, "attention.sliding_window": "sliding_window"},
        optional={"attention.sliding_window_pattern": "sliding_window_pattern"},
    ),
)
