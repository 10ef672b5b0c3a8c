"""OLMo 2: a Llama whose modules are normed behind them alone, queries and keys over all heads."""

from dataclasses import replace

from monolane.model.families._gguf import GgufSpelling
from monolane.model.families.llama import BIASES, DENSE, LLAMA, NAMES, render_as
from monolane.ops import QkNorm, Role

_NAMES = NAMES | {
    Role.Q_NORM: "model.layers.{i}.self_attn.q_norm.weight",
    Role.K_NORM: "model.layers.{i}.self_attn.k_norm.weight",
    Role.POST_ATTENTION_NORM: "model.layers.{i}.post_attention_layernorm.weight",
    Role.POST_MLP_NORM: "model.layers.{i}.post_feedforward_layernorm.weight",
}

OLMO2 = replace(
    LLAMA,
    name="olmo2",
    model_types=("olmo2",),
    fields=DENSE
    | BIASES
    | {
        "norm_before": lambda f: False,
        "norm_after": lambda f: True,
        "norm_eps": lambda f: f.number("rms_norm_eps", 1e-5),
        "qk_norm": lambda f: QkNorm.ALL,
    },
    names=lambda config: _NAMES,
    render=render_as("Olmo2"),
    gguf=GgufSpelling(architecture="olmo2", style="half"),
)
