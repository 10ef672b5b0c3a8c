"""Gemma, the first: a Llama with norms of scales 1 + w, GELU and a scaled embedding.

Published files say ``hidden_act`` "gelu" and mean its formula with tanh, as Transformers takes it.
"""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families.gemma3 import read_embedding_scale
from monolane.model.families.llama import BIASES, DENSE, LLAMA, render_as

_TANH = "gelu_pytorch_tanh"
_DEFAULTS: dict[str, Any] = {
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def _view(fields: Fields) -> Fields:
    there = {name: x for name, x in fields.raw.items() if x is not None}
    meant = {"hidden_act": _TANH} if there.get("hidden_act") == "gelu" else {}
    return Fields({**_DEFAULTS, **there, **meant}, fields.source, fields.spelled)


def _render(config: ModelConfig) -> dict[str, Any]:
    return render_as("Gemma")(config) | {"hidden_act": _TANH}


GEMMA = replace(
    LLAMA,
    name="gemma",
    model_types=("gemma",),
    fields=DENSE
    | BIASES
    | {
        "norm_offset": lambda f: 1.0,
        "activation": lambda f: "gelu_tanh",
        "embedding_scale": read_embedding_scale,
    },
    fixed={
        "hidden_act": (_TANH, ""),
        "hidden_activation": (_TANH, ""),
        "use_bidirectional_attention": (False, "a decoder sees what came before only"),
    },
    render=_render,
    view=_view,
    gguf=GgufSpelling(
        architecture="gemma",
        style="half",
        given=lambda fields: {"hidden_act": _TANH},
        folded={"norm_offset": 0.0},  # the converter adds the 1 to the scales
    ),
)
