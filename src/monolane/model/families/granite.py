"""Granite: a Llama with multipliers of the embedding, of scores, of modules and of logits."""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._mamba import GGUF_KEYS
from monolane.model.families.llama import BIASES, DENSE, LLAMA, render_as

# Field of ModelConfig -> field of config.json, which is 1 where it is not there.
_MULTIPLIERS = {
    "embedding_scale": "embedding_multiplier",
    "query_scale": "attention_multiplier",
    "residual_scale": "residual_multiplier",
}


def _logit_scale(fields: Fields) -> float:
    """Return what logits are multiplied by; config.json says by what they are divided."""
    divisor = fields.number("logits_scaling", 1.0)
    if not divisor > 0:
        raise fields.fault("logits_scaling", "a number above 0")
    return 1 / divisor


def _render(config: ModelConfig) -> dict[str, Any]:
    said = {name: getattr(config, place) for place, name in _MULTIPLIERS.items()}
    return render_as("Granite")(config) | said | {"logits_scaling": 1 / config.logit_scale}


GRANITE = replace(
    LLAMA,
    name="granite",
    model_types=("granite",),
    fields=DENSE
    | BIASES
    | {
        "embedding_scale": lambda f: f.number("embedding_multiplier", 1.0),
        "query_scale": lambda f: f.number("attention_multiplier", 1.0),
        "residual_scale": lambda f: f.number("residual_multiplier", 1.0),
        "logit_scale": _logit_scale,
    },
    render=_render,
    gguf=GgufSpelling(
        architecture="granite",
        style="interleaved",
        keys={
            "embedding_scale": "embedding_multiplier",
            "attention.scale": "attention_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
        # Of Granite 4 without Mamba-2, whose files say sizes of it all the same.
        optional={
            **GGUF_KEYS,
            "expert_shared_feed_forward_length": "shared_intermediate_size",
        },
    ),
)
