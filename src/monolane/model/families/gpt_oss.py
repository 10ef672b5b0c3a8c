"""GPT-OSS: mixtures in all layers, biases in all products, sinks in attention, a clamped SwiGLU.

A router's softmax is over the chosen alone: that is what weights that add up to 1 are. Gate and up
lie in one tensor, row by row in turn: floats with the columns first, or MXFP4 (``_mxfp4.py``).
Layers have windows in turn, from the first on, where ``layer_types`` says nothing. Where a field is
not there it means what Transformers 5 takes for it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._rotary import read_rotary
from monolane.model.families.llama import DENSE, LLAMA, NAMES, read_layers, render_as
from monolane.ops import Experts, Role

_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 8,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
}
_WINDOW, _THETA = 128, 150000.0
_EXPERTS = "model.layers.{i}.mlp.experts."
_NAMES = NAMES | {
    Role.SINKS: "model.layers.{i}.self_attn.sinks",
    Role.ROUTER: "model.layers.{i}.mlp.router.weight",
    Role.ROUTER_BIAS: "model.layers.{i}.mlp.router.bias",
    Role.EXPERT_GATE: _EXPERTS + "gate_up_proj",
    Role.EXPERT_UP: _EXPERTS + "gate_up_proj",
    Role.EXPERT_DOWN: _EXPERTS + "down_proj",
    Role.EXPERT_GATE_BIAS: _EXPERTS + "gate_up_proj_bias",
    Role.EXPERT_UP_BIAS: _EXPERTS + "gate_up_proj_bias",
    Role.EXPERT_DOWN_BIAS: _EXPERTS + "down_proj_bias",
}


def _view(fields: Fields) -> Fields:
    there = {name: value for name, value in fields.raw.items() if value is not None}
    stretched = "rope_scaling" in there or "rope_parameters" in there
    defaults = _DEFAULTS if stretched else _DEFAULTS | {"rope_scaling": _YARN}
    window = {"sliding_window": fields.raw.get("sliding_window", _WINDOW)}  # null: none
    return Fields(defaults | there | window, fields.source, fields.spelled)


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    window = fields.optional_size("sliding_window")
    layers = read_layers(fields, window, lambda i: i % 2 == 0)
    return tuple(replace(layer, experts=True) for layer in layers)


def _experts(fields: Fields) -> Experts:
    return Experts(
        count=fields.size("num_local_experts"),
        chosen=fields.size("num_experts_per_tok"),
        inner=fields.size("intermediate_size"),
        normalised=True,
        biases=True,
    )


def _render(config: ModelConfig) -> dict[str, Any]:
    assert config.experts is not None
    said = render_as("GptOss", "gpt_oss")(config)
    if said["sliding_window"] is None:  # which Transformers takes for no number, used or not
        del said["sliding_window"]
    if config.rotary.scaling is None:  # no field would mean YaRN
        said["rope_scaling"] = {"rope_type": "default"}
    return said | {
        "num_local_experts": config.experts.count,
        "num_experts_per_tok": config.experts.chosen,
        "attention_bias": config.qkv_bias,
    }


def _gguf_given(fields: Fields) -> Mapping[str, Any]:
    """Return what a GGUF file leaves to its readers: without a stretch said, there is none."""
    return {} if fields.has("rope_scaling") else {"rope_scaling": {"rope_type": "default"}}


GPT_OSS = replace(
    LLAMA,
    name="gpt_oss",
    model_types=("gpt_oss",),
    fields=DENSE
    | {
        "layers": _layers,
        "experts": _experts,
        "rotary": lambda f: read_rotary(f, "half", _THETA),
        "qkv_bias": lambda f: f.flag("attention_bias", True),
        "out_bias": lambda f: f.flag("attention_bias", True),
        "attention_sinks": lambda f: True,
        "activation": lambda f: "clamped_swiglu",
    },
    fixed={
        "hidden_act": ("silu", ""),
        "swiglu_alpha": (1.702, "executors have this one in their SwiGLU"),
        "swiglu_limit": (7.0, "executors have this one in their SwiGLU"),
    },
    names=lambda config: _NAMES,
    columns_first=frozenset((Role.EXPERT_GATE, Role.EXPERT_UP, Role.EXPERT_DOWN)),
    render=_render,
    view=_view,
    gguf=GgufSpelling(
        architecture="gpt-oss",
        style="half",
        keys={
            "attention.sliding_window": "sliding_window",
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "intermediate_size",
        },
        # The model's blend begins amid a pair. No field of the file says it, and llama.cpp rounds.
        scaling={"truncate": False},
        given=_gguf_given,
        names=lambda config: {Role.MLP_NORM: "blk.{i}.post_attention_norm.weight"},
        experts=True,
    ),
)
