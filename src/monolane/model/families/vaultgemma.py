"""VaultGemma: a Gemma 2 without the norms behind modules."""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model.families.gemma2 import GEMMA2
from monolane.ops import Role

_POST = (Role.POST_ATTENTION_NORM, Role.POST_MLP_NORM)


def _render(config: ModelConfig) -> dict[str, Any]:
    named = {"architectures": ["VaultGemmaForCausalLM"], "model_type": "vaultgemma"}
    return GEMMA2.render(config) | named


VAULTGEMMA = replace(
    GEMMA2,
    name="vaultgemma",
    model_types=("vaultgemma",),
    fields={place: read for place, read in GEMMA2.fields.items() if place != "norm_after"},
    names=lambda config: {
        role: name for role, name in GEMMA2.names(config).items() if role not in _POST
    },
    render=_render,
    gguf=None,
)
