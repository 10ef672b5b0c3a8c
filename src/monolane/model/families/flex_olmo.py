"""FlexOlmo: an OLMo 2 each of whose MLPs is a mixture of experts, as in OLMoE."""

from dataclasses import replace

from monolane.model.families._rotary import read_rotary
from monolane.model.families.llama import LLAMA
from monolane.model.families.olmo2 import OLMO2
from monolane.model.families.olmoe import OLMOE, read_experts, render_experts_as
from monolane.model.families.qwen3_moe import ROUTED

_COUNT, _CHOSEN, _THETA = 7, 5, 5e5  # of Transformers, where the fields are not there

FLEX_OLMO = replace(
    OLMO2,
    name="flex_olmo",
    model_types=("flex_olmo",),
    fields={
        **OLMO2.fields,
        "layers": OLMOE.fields["layers"],
        "experts": lambda f: read_experts(f, _COUNT, _CHOSEN),
        "rotary": lambda f: read_rotary(f, "half", _THETA),
        "norm_eps": lambda f: f.number("rms_norm_eps", 1e-6),
    },
    fixed={"hidden_act": LLAMA.fixed["hidden_act"]},
    names=lambda config: {**OLMO2.names(config), **ROUTED},
    render=render_experts_as("FlexOlmo", "flex_olmo"),
    gguf=None,
)
