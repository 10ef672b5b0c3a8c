"""Qwen3: norms of each head of queries and keys; biases only where ``attention_bias`` has them."""

from dataclasses import replace

from monolane.model.families._gguf import GgufSpelling
from monolane.model.families.llama import BIASES, LLAMA, NAMES, render_as
from monolane.model.families.qwen2 import QWEN2
from monolane.ops import QkNorm, Role

_NAMES = NAMES | {
    Role.Q_NORM: "model.layers.{i}.self_attn.q_norm.weight",
    Role.K_NORM: "model.layers.{i}.self_attn.k_norm.weight",
}

QWEN3 = replace(
    QWEN2,
    name="qwen3",
    model_types=("qwen3",),
    fields={**QWEN2.fields, **BIASES, "qk_norm": lambda f: QkNorm.HEAD},
    fixed=LLAMA.fixed,
    names=lambda config: _NAMES,
    render=render_as("Qwen3"),
    gguf=GgufSpelling(
        architecture="qwen3",
        style="half",
        also=("qwen3vl",),  # the text of Qwen3-VL is a Qwen3's
        # Of a token of text all positions are equal, and no layer is given features of an image.
        optional={
            "rope.dimension_sections": "mrope_section",
            "n_deepstack_layers": "n_deepstack_layers",
        },
    ),
)
