"""HyperCLOVA X SEED Think: a Granite whose modules are normed behind them too, if so said.

Logits are multiplied by ``logits_scaling``, by which Granite divides them.
"""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model.families.granite import GRANITE
from monolane.model.families.llama import NAMES
from monolane.ops import Role

_NAMES = {
    **NAMES,
    Role.POST_ATTENTION_NORM: "model.layers.{i}.post_norm1.weight",
    Role.POST_MLP_NORM: "model.layers.{i}.post_norm2.weight",
}


def _render(config: ModelConfig) -> dict[str, Any]:
    return GRANITE.render(config) | {
        "architectures": ["HyperCLOVAXForCausalLM"],
        "model_type": "hyperclovax",
        "logits_scaling": config.logit_scale,
        "use_post_norm": config.norm_after,
    }


HYPERCLOVAX = replace(
    GRANITE,
    name="hyperclovax",
    model_types=("hyperclovax",),
    fields={
        **GRANITE.fields,
        "query_scale": lambda f: (
            f.number("attention_multiplier") if f.has("attention_multiplier") else None
        ),
        "logit_scale": lambda f: f.number("logits_scaling", 1.0),
        "norm_after": lambda f: f.flag("use_post_norm", True),
    },
    names=lambda config: _NAMES,
    render=_render,
    gguf=None,
)
