"""GLM-4, dense: norms before and behind each module; half of each head turns, by neighbours.

Files have gate and up in one tensor. Its first models, which call themselves ``glm``, have norms
before each module alone.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model.families._gguf import GgufSpelling, turned_part
from monolane.model.families._rotary import read_rotary
from monolane.model.families.llama import DENSE, LLAMA, NAMES, render_as
from monolane.ops import Role

# What Transformers takes where the fields are not there.
_THETA, _PART, _NORM_EPS, _KV_HEADS, _HEAD_DIM = 1e4, 0.5, 1.5625e-7, 2, 128
_NAMES = {
    **NAMES,
    Role.POST_ATTENTION_NORM: "model.layers.{i}.post_self_attn_layernorm.weight",
    Role.POST_MLP_NORM: "model.layers.{i}.post_mlp_layernorm.weight",
    Role.GATE_UP: "model.layers.{i}.mlp.gate_up_proj.weight",
}


def _render_as(kind: str) -> Callable[[ModelConfig], dict[str, Any]]:
    def render(config: ModelConfig) -> dict[str, Any]:
        return render_as(kind)(config) | {
            "attention_bias": config.qkv_bias,
            "partial_rotary_factor": config.rotary.part,
        }

    return render


GLM4 = replace(
    LLAMA,
    name="glm4",
    model_types=("glm4",),
    fields=DENSE
    | {
        "num_kv_heads": lambda f: f.size("num_key_value_heads", _KV_HEADS),
        "head_dim": lambda f: f.size("head_dim", _HEAD_DIM),
        "rotary": lambda f: read_rotary(f, "interleaved", _THETA, part=_PART),
        "norm_eps": lambda f: f.number("rms_norm_eps", _NORM_EPS),
        "norm_after": lambda f: True,
        "qkv_bias": lambda f: f.flag("attention_bias", True),
    },
    fixed={"hidden_act": ("silu", "")},
    names=lambda config: _NAMES,
    render=_render_as("Glm4"),
    gguf=GgufSpelling(
        architecture="glm4",
        style="interleaved",
        keys={"rope.dimension_count": "rope_dimension_count"},
        given=lambda fields: {
            "attention_bias": fields.flag("query_bias", False),
            "partial_rotary_factor": turned_part(fields),
        },
        names=lambda config: {Role.GATE_UP: "blk.{i}.ffn_up.weight"},
    ),
)


def _first_gguf_given(fields: Fields) -> dict[str, Any]:
    """Return what tensors say, and the width of a head, of which these files say nothing."""
    assert _GLM4_GGUF is not None
    width = fields.size("hidden_size") // fields.size("num_attention_heads")
    return {**_GLM4_GGUF.given(fields), "head_dim": fields.size("head_dim", max(1, width))}


_GLM4_GGUF = GLM4.gguf
assert _GLM4_GGUF is not None
_POST = (Role.POST_ATTENTION_NORM, Role.POST_MLP_NORM)
GLM = replace(
    GLM4,
    name="glm",
    model_types=("glm",),
    fields={place: read for place, read in GLM4.fields.items() if place != "norm_after"},
    names=lambda config: {role: name for role, name in _NAMES.items() if role not in _POST},
    render=_render_as("Glm"),
    gguf=replace(_GLM4_GGUF, architecture="chatglm", given=_first_gguf_given),
)
