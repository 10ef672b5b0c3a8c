"""Phi-3 and Phi-4: a Llama whose files have q, k and v in one tensor, and gate and up in another.

``sliding_window`` is of all layers. The stretch "longrope" is refused.
"""

from dataclasses import replace

from monolane.model.families._gguf import GgufSpelling, turned_part
from monolane.model.families._rotary import read_rotary
from monolane.model.families.llama import DENSE, LLAMA, NAMES, read_alike, render_as
from monolane.ops import Role

_THETA, _NORM_EPS = 1e4, 1e-5
_ONE = 1.0  # all of a head turns, where nothing else is said
NAMES_FUSED = {
    **NAMES,
    Role.QKV: "model.layers.{i}.self_attn.qkv_proj.weight",
    Role.GATE_UP: "model.layers.{i}.mlp.gate_up_proj.weight",
}

PHI3 = replace(
    LLAMA,
    name="phi3",
    model_types=("phi3",),
    fields=DENSE
    | {
        "layers": lambda f: read_alike(f, f.optional_size("sliding_window")),
        "rotary": lambda f: read_rotary(f, "half", _THETA, part=_ONE),
        "norm_eps": lambda f: f.number("rms_norm_eps", _NORM_EPS),
    },
    fixed={"hidden_act": ("silu", "")},
    names=lambda config: NAMES_FUSED,
    render=lambda config: render_as("Phi3")(config) | {"partial_rotary_factor": config.rotary.part},
    gguf=GgufSpelling(
        architecture="phi3",
        style="half",
        keys={"rope.dimension_count": "rope_dimension_count"},
        optional={"attention.sliding_window": "sliding_window"},
        given=lambda fields: {"partial_rotary_factor": turned_part(fields)},
        names=lambda config: {
            Role.QKV: "blk.{i}.attn_qkv.weight",
            Role.GATE_UP: "blk.{i}.ffn_up.weight",
        },
    ),
)
