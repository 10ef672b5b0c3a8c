"""Ernie 4.5, dense: a Llama whose rotary pairs lie side by side."""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._rotary import read_rotary
from monolane.model.families.llama import DENSE, LLAMA, render_as

# What Transformers takes where the fields are not there.
_THETA, _HEAD_DIM, _KV_HEADS, _NORM_EPS = 5e5, 128, 2, 1e-5


def _render(config: ModelConfig) -> dict[str, Any]:
    return render_as("Ernie4_5", "ernie4_5")(config) | {"use_bias": False}


ERNIE4_5 = replace(
    LLAMA,
    name="ernie4_5",
    model_types=("ernie4_5",),
    fields=DENSE
    | {
        "num_kv_heads": lambda f: f.size("num_key_value_heads", _KV_HEADS),
        "head_dim": lambda f: f.size("head_dim", _HEAD_DIM),
        "rotary": lambda f: read_rotary(f, "interleaved", _THETA),
        "norm_eps": lambda f: f.number("rms_norm_eps", _NORM_EPS),
        "tie_embeddings": lambda f: f.flag("tie_word_embeddings", True),
    },
    fixed={
        "hidden_act": ("silu", ""),
        "use_bias": (False, "executors have no biases in the MLP"),
    },
    render=_render,
    gguf=GgufSpelling(architecture="ernie4_5", style="interleaved"),
)
