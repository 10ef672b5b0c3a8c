"""Seed-OSS: a Llama with biases on queries, keys and values, and its own flag for those behind."""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model.families._gguf import GGUF_NAMES, GgufSpelling
from monolane.model.families.llama import DENSE, LLAMA, render_as
from monolane.ops import Role

_HEAD_DIM = 128  # where none is given, as Transformers takes it


def _render(config: ModelConfig) -> dict[str, Any]:
    return render_as("SeedOss", "seed_oss")(config) | {
        "attention_bias": config.qkv_bias,
        "attention_out_bias": config.out_bias,
    }


SEED_OSS = replace(
    LLAMA,
    name="seed_oss",
    model_types=("seed_oss",),
    fields=DENSE
    | {
        "num_kv_heads": lambda f: f.size("num_key_value_heads", 8),
        "head_dim": lambda f: f.size("head_dim", _HEAD_DIM),
        "qkv_bias": lambda f: f.flag("attention_bias", True),
        "out_bias": lambda f: f.flag("attention_out_bias", False),
    },
    render=_render,
    gguf=GgufSpelling(
        architecture="seed_oss",
        style="half",
        # ``attention_bias`` of a file says whether there are biases behind attention.
        given=lambda fields: {
            "attention_bias": fields.flag("query_bias", True),
            "attention_out_bias": fields.flag("attention_bias", False),
        },
        names=lambda config: {Role.MLP_NORM: GGUF_NAMES[Role.POST_ATTENTION_NORM]},
    ),
)
