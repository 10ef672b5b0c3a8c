"""Qwen3-Next: gated delta rules in most layers, gated attention in the others, mixtures of experts.

A layer's kind is in ``layer_types``; without it every ``full_attention_interval``-th layer attends,
counted from 1. Mixtures are as in Qwen3-MoE, each with an MLP that all tokens share, behind a gate.
Norms have scales 1 + w, but for that of a gated delta rule's outputs. Of a head's numbers the first
``partial_rotary_factor`` are turned, a quarter where that is not said. Tensors "mtp."
predict tokens further ahead (_ahead.py); in GGUF files they are the last blocks.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model._reduce import NOW
from monolane.model.families._ahead import QWEN_AHEAD
from monolane.model.families._family import layer_count, render_common
from monolane.model.families._gguf import AHEAD, GGUF_NAMES, GgufSpelling, turned_part
from monolane.model.families._rotary import FULL, read_rotary
from monolane.model.families.llama import surplus
from monolane.model.families.qwen2_moe import SHARED
from monolane.model.families.qwen3_moe import (
    QWEN3_MOE,
    mixtures_of,
    read_experts,
    render_mixtures,
)
from monolane.ops import Delta, Experts, Role

LINEAR = "linear_attention"  # what config.json calls a gated delta rule
_DELTA_PREFIX = "model.layers.{i}.linear_attn."
DELTA_NAMES = {
    Role.DELTA_IN: _DELTA_PREFIX + "in_proj_qkvz.weight",
    Role.DELTA_GATES: _DELTA_PREFIX + "in_proj_ba.weight",
    Role.DELTA_CONV: _DELTA_PREFIX + "conv1d.weight",
    Role.DELTA_DECAY: _DELTA_PREFIX + "A_log",
    Role.DELTA_STEP: _DELTA_PREFIX + "dt_bias",
    Role.DELTA_NORM: _DELTA_PREFIX + "norm.weight",
    Role.DELTA_OUT: _DELTA_PREFIX + "out_proj.weight",
}
# Field of Delta -> field of config.json.
_SIZES = {
    "key_heads": "linear_num_key_heads",
    "value_heads": "linear_num_value_heads",
    "key": "linear_key_head_dim",
    "value": "linear_value_head_dim",
    "kernel": "linear_conv_kernel_dim",
}
# What a config.json that leaves them out means.
_DEFAULTS = {
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "norm_topk_prob": True,
}
_PART = 0.25  # of a head turns


def _view(fields: Fields) -> Fields:
    there = {name: value for name, value in fields.raw.items() if value is not None}
    if "num_local_experts" in there:  # which Transformers 5 may write
        there.setdefault("num_experts", there["num_local_experts"])
    return Fields({**_DEFAULTS, **there}, fields.source, fields.spelled)


def read_kinds(fields: Fields) -> list[str]:
    """Return what each layer has, a gated delta rule or attention."""
    count, kinds = layer_count(fields), fields.raw.get("layer_types")
    if kinds is None:
        every = fields.size("full_attention_interval")
        return [LINEAR if (i + 1) % every else FULL for i in range(count)]
    known = isinstance(kinds, list) and all(kind in (FULL, LINEAR) for kind in kinds)
    if not known or len(kinds) != count:
        expected = f"a list of {count} kinds of attention, one a layer: {FULL!r} or {LINEAR!r}"
        raise fields.fault("layer_types", expected)
    return list(kinds)


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    mixtures = mixtures_of(fields)
    return tuple(
        LayerConfig(NOW, NOW, experts=i in mixtures, delta=kind == LINEAR)
        for i, kind in enumerate(read_kinds(fields))
    )


def _delta(fields: Fields) -> Delta | None:
    if LINEAR not in read_kinds(fields):
        return None
    sizes: dict[str, Any] = {place: fields.size(name) for place, name in _SIZES.items()}
    return Delta(**sizes)


def _experts(fields: Fields) -> Experts | None:
    plain = read_experts(fields)
    shared = fields.size("shared_expert_intermediate_size")
    return None if plain is None else replace(plain, shared=shared, shared_expert_gate=True)


def _surplus(config: ModelConfig, name: str) -> bool:
    return surplus(config, name) or name.startswith("mtp.")


def render_hybrid(config: ModelConfig, kind: str, model_type: str) -> dict[str, Any]:
    """Write a config but for its mixtures; Transformers calls its family ``kind``."""
    said = render_common(config, f"{kind}ForCausalLM", model_type) | {
        "hidden_act": "silu",
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        "attention_bias": False,
        "partial_rotary_factor": config.rotary.part,
        "layer_types": [LINEAR if layer.delta else FULL for layer in config.layers],
    }
    if config.delta is not None:
        said |= {name: getattr(config.delta, place) for place, name in _SIZES.items()}
    return said


def _render(config: ModelConfig) -> dict[str, Any]:
    said = render_hybrid(config, "Qwen3Next", "qwen3_next")
    if config.experts is not None:
        said["shared_expert_intermediate_size"] = config.experts.shared
    return said | render_mixtures(config)


def _gguf_given(fields: Fields) -> dict[str, Any]:
    """Return what the file says in other words, and what it leaves to its readers.

    As llama.cpp has it, the weights of the chosen experts add up to 1.
    """
    blocks, ahead = layer_count(fields), fields.size(AHEAD, 0)
    if ahead >= blocks:
        raise fields.fault(AHEAD, f"fewer than all {blocks} blocks")
    heads, values = fields.size("linear_num_value_heads"), fields.size("ssm_inner_size")
    if values % heads:
        raise fields.fault("ssm_inner_size", f"a multiple of {heads}, the number of value heads")
    given: dict[str, Any] = {
        "num_hidden_layers": blocks - ahead,
        "linear_value_head_dim": values // heads,
        "partial_rotary_factor": turned_part(fields),
        "norm_topk_prob": True,
    }
    if fields.has("recurrent_layers"):
        kinds = [LINEAR if x else FULL for x in _recurrent(fields, blocks)]
        given["layer_types"] = kinds[: blocks - ahead]
    return given


def _recurrent(fields: Fields, blocks: int) -> list[bool]:
    """Read of each block whether it has a state."""
    said = fields.raw["recurrent_layers"]
    if not isinstance(said, np.ndarray) or said.dtype != np.bool_ or len(said) != blocks:
        raise fields.fault("recurrent_layers", f"a list of {blocks} of true or false")
    found: list[bool] = said.tolist()
    return found


_GGUF = GgufSpelling(
    architecture="qwen3next",
    style="half",
    keys={
        "attention.key_length": "head_dim",
        "rope.dimension_count": "rope_dimension_count",
        "expert_count": "num_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        "ssm.conv_kernel": "linear_conv_kernel_dim",
        "ssm.group_count": "linear_num_key_heads",
        "ssm.time_step_rank": "linear_num_value_heads",
        "ssm.state_size": "linear_key_head_dim",
        "ssm.inner_size": "ssm_inner_size",
    },
    optional={
        "attention.recurrent_layers": "recurrent_layers",
        "full_attention_interval": "full_attention_interval",
        AHEAD: AHEAD,
    },
    given=_gguf_given,
    folded={"norm_offset": 0.0},
    names=lambda config: {Role.MLP_NORM: GGUF_NAMES[Role.POST_ATTENTION_NORM]},
    experts=True,
)

QWEN3_NEXT = replace(
    QWEN3_MOE,
    name="qwen3_next",
    model_types=("qwen3_next",),
    fields={
        **QWEN3_MOE.fields,
        "layers": _layers,
        "rotary": lambda f: read_rotary(f, "half", part=_PART),
        "norm_offset": lambda f: 1.0,
        "attention_gate": lambda f: True,
        "delta": _delta,
        "experts": _experts,
    },
    fixed={
        **QWEN3_MOE.fixed,
        "attention_bias": (False, "executors have no bias of the gate in Q"),
    },
    names=lambda config: {**QWEN3_MOE.names(config), **SHARED, **DELTA_NAMES},
    # The one tensor with an axis in the lanes' place: a matrix of one row.
    shared=lambda config: frozenset(Role) - {Role.SHARED_EXPERT_GATE},
    surplus=_surplus,
    render=_render,
    view=_view,
    gguf=_GGUF,
    ahead=QWEN_AHEAD,
)
