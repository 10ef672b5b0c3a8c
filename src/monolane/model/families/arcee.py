"""Arcee's AFM: a Llama whose MLPs have no gate, but the square of what is above zero."""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families.llama import LLAMA, NAMES, render_as
from monolane.ops import Role

_SQUARED = "relu2"


def _render(config: ModelConfig) -> dict[str, Any]:
    return render_as("Arcee")(config) | {"hidden_act": _SQUARED}


ARCEE = replace(
    LLAMA,
    name="arcee",
    model_types=("arcee",),
    fields={
        **LLAMA.fields,
        "activation": lambda f: "relu_squared",
        "norm_eps": lambda f: f.number("rms_norm_eps", 1e-5),  # as Transformers takes it
    },
    fixed={**LLAMA.fixed, "hidden_act": (_SQUARED, "")},
    names=lambda config: {role: name for role, name in NAMES.items() if role != Role.GATE},
    render=_render,
    gguf=GgufSpelling(
        architecture="arcee",
        style="interleaved",
        given=lambda fields: {"hidden_act": _SQUARED},
    ),
)
