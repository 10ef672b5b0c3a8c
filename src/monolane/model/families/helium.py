"""Helium: a Llama whose rotary pairs lie side by side."""

from dataclasses import replace

from monolane.model.families._rotary import read_rotary
from monolane.model.families.llama import DENSE, LLAMA, render_as

# What Transformers takes where the fields are not there.
_THETA, _HEADS, _HEAD_DIM, _NORM_EPS = 1e5, 20, 128, 1e-8

HELIUM = replace(
    LLAMA,
    name="helium",
    model_types=("helium",),
    fields=DENSE
    | {
        "num_kv_heads": lambda f: f.size("num_key_value_heads", _HEADS),
        "head_dim": lambda f: f.size("head_dim", _HEAD_DIM),
        "rotary": lambda f: read_rotary(f, "interleaved", _THETA),
        "norm_eps": lambda f: f.number("rms_norm_eps", _NORM_EPS),
    },
    fixed={**LLAMA.fixed, "attention_bias": (False, "this family's files have no biases")},
    render=render_as("Helium"),
    gguf=None,
)
