"""Phi-3 and Phi-4: a Llama whose files have q, k and v in one tensor, and gate and up in another.

``sliding_window`` is of all layers. The stretch "longrope" may have an older name, "su".
"""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._rotary import LongRopeScaling
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

_ORIGINAL, _STRETCHES = "original_max_position_embeddings", ("rope_scaling", "rope_parameters")
_TRAINED = 4096  # tokens, where nothing is said


def _view(fields: Fields) -> Fields:
    """Give a stretch the name that it has now, and its trained context."""
    changed: dict[str, Any] = {}
    for name in _STRETCHES:
        stretch = fields.raw.get(name)
        if not isinstance(stretch, dict):
            continue
        kind = stretch.get("rope_type", stretch.get("type"))
        if kind in ("su", "longrope"):
            context = fields.raw.get(_ORIGINAL, _TRAINED)
            changed[name] = {_ORIGINAL: context, **stretch, "rope_type": "longrope"}
    return Fields({**fields.raw, **changed}, fields.source, fields.spelled) if changed else fields


def _render(config: ModelConfig) -> dict[str, Any]:
    said = render_as("Phi3")(config) | {"partial_rotary_factor": config.rotary.part}
    if isinstance(config.rotary.scaling, LongRopeScaling):
        said[_ORIGINAL] = config.rotary.scaling.original_context
    return said


def _gguf_given(fields: Fields) -> dict[str, Any]:
    """Return what the file says in other words: a stretch is there if the tensors say divisors."""
    part = {"partial_rotary_factor": turned_part(fields)}
    if not fields.has("long_factor"):
        return part
    places = ("long_factor", "short_factor", _ORIGINAL, "attention_factor")
    stretch = {name: fields.raw[name] for name in places if fields.has(name)}
    return part | {"rope_scaling": {"rope_type": "longrope", **stretch}}


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
    render=_render,
    view=_view,
    gguf=GgufSpelling(
        architecture="phi3",
        style="half",
        keys={"rope.dimension_count": "rope_dimension_count"},
        optional={
            "attention.sliding_window": "sliding_window",
            "rope.scaling.original_context_length": _ORIGINAL,
            "rope.scaling.attn_factor": "attention_factor",
        },
        given=_gguf_given,
        names=lambda config: {
            Role.QKV: "blk.{i}.attn_qkv.weight",
            Role.GATE_UP: "blk.{i}.ffn_up.weight",
        },
    ),
)
