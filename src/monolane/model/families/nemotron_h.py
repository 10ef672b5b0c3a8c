"""Nemotron-H: one module a layer, Mamba-2, attention, an MLP or a mixture.

What a layer has is in ``hybrid_override_pattern``, a letter each, M, *, - or E, or by names in
``layers_block_type``. Attention turns nothing. MLPs and experts have no gate: max(x, 0)^2 of one
product. Mixtures are chosen as DeepSeek-V3's. Tensors "mtp.", which predict tokens further ahead,
are not read; in GGUF files they are the last blocks.

Steps have no least size. Transformers has one in prompts, ``time_step_min``, and none token by
token; the model's own kernels, and llama.cpp, have none.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from monolane.model._config import MAX_LAYERS, ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig, ModuleName
from monolane.model._reduce import NOW
from monolane.model.families._family import layer_count, render_common
from monolane.model.families._gguf import AHEAD, GgufSpelling
from monolane.model.families._mamba import (
    ATTENTION,
    GGUF_KEYS,
    MAMBA,
    by_layer,
    mamba_names,
    read_mamba,
)
from monolane.model.families.llama import BIASES, DENSE, LLAMA
from monolane.ops import Experts, Operation, Role
from monolane.ops.mamba.spec import Mamba

_LETTERS = {"M": MAMBA[1], "*": ATTENTION[1], "-": "mlp", "E": "moe"}
_MLP, _MOE = "mlp", "moe"
_NAMED: dict[str, ModuleName] = {ATTENTION[1]: "attention", _MLP: "mlp", _MOE: "experts"}
_LAYER = "backbone.layers.{i}."
_MIXER = _LAYER + "mixer."
_NAMES = {
    **mamba_names(_MIXER),
    Role.EMBEDDING: "backbone.embeddings.weight",
    Role.ATTENTION_NORM: _LAYER + "norm.weight",  # of whatever module it is
    Role.Q: _MIXER + "q_proj.weight",
    Role.K: _MIXER + "k_proj.weight",
    Role.V: _MIXER + "v_proj.weight",
    Role.O: _MIXER + "o_proj.weight",
    Role.Q_BIAS: _MIXER + "q_proj.bias",
    Role.K_BIAS: _MIXER + "k_proj.bias",
    Role.V_BIAS: _MIXER + "v_proj.bias",
    Role.O_BIAS: _MIXER + "o_proj.bias",
    Role.UP: _MIXER + "up_proj.weight",
    Role.DOWN: _MIXER + "down_proj.weight",
    Role.ROUTER: _MIXER + "gate.weight",
    Role.ROUTER_CORRECTION: _MIXER + "gate.e_score_correction_bias",
    Role.EXPERT_UP: _MIXER + "experts.{e}.up_proj.weight",
    Role.EXPERT_DOWN: _MIXER + "experts.{e}.down_proj.weight",
    Role.SHARED_UP: _MIXER + "shared_experts.up_proj.weight",
    Role.SHARED_DOWN: _MIXER + "shared_experts.down_proj.weight",
    Role.FINAL_NORM: "backbone.norm_f.weight",
    Role.HEAD: "lm_head.weight",
}
# What a config.json that leaves them out means.
_DEFAULTS: Mapping[str, Any] = {
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
    "intermediate_size": 21504,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
}
# Fields of ``read_mamba`` -> those of this family, the first one that is there.
_SIZES = {
    "mamba_n_heads": ("mamba_num_heads",),
    "mamba_d_head": ("mamba_head_dim",),
    "mamba_n_groups": ("n_groups", "mamba_n_groups"),
    "mamba_d_state": ("ssm_state_size",),
    "mamba_d_conv": ("conv_kernel", "mamba_d_conv"),
    "mamba_conv_bias": ("use_conv_bias", "mamba_conv_bias"),
}
_GROUPS, _HEAD, _NORM_EPS = 8, 128, 1e-5
_NO_STEP = 1e-30  # below any: what Transformers, which takes its logarithm, is told


def _view(fields: Fields) -> Fields:
    there = {name: value for name, value in fields.raw.items() if value is not None}
    return Fields({**_DEFAULTS, **there}, fields.source, fields.spelled)


def _kinds(fields: Fields) -> list[str]:
    """Return what each layer has, by its name in ``layers_block_type``."""
    name = fields.first("hybrid_override_pattern", "layers_block_type")
    name = name if fields.has(name) else "layer_types"
    said = fields.raw.get(name)
    if isinstance(said, str):
        said = [_LETTERS.get(letter) for letter in said]
    if not isinstance(said, list) or not 0 < len(said) <= MAX_LAYERS:
        raise fields.fault(name, f"what each of up to {MAX_LAYERS} layers has: M, *, - or E")
    old = {MAMBA[0]: MAMBA[1], ATTENTION[0]: ATTENTION[1]}
    kinds = [old.get(kind, kind) if isinstance(kind, str) else "" for kind in said]
    if not set(kinds) <= set(_LETTERS.values()):
        expected = ", ".join(map(repr, _LETTERS.values()))
        raise fields.fault(name, f"a list of {expected}, or a word of M, *, - and E")
    return kinds


def _mamba(fields: Fields) -> Mamba:
    said = {ours: fields.raw.get(fields.first(*theirs)) for ours, theirs in _SIZES.items()}
    said["mamba_n_groups"] = said["mamba_n_groups"] or _GROUPS
    heads, head = fields.size("mamba_num_heads"), fields.size("mamba_head_dim")
    wide = {"mamba_d_ssm": heads * head}
    return read_mamba(Fields({**fields.raw, **said, **wide}, fields.source, fields.spelled))


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    kinds = _kinds(fields)
    mamba = _mamba(fields) if MAMBA[1] in kinds else None

    def operation(kind: str) -> ModuleName | Operation:
        return mamba if kind == MAMBA[1] and mamba is not None else _NAMED[kind]

    return tuple(
        LayerConfig(NOW, NOW, rotary="none", experts=kind == _MOE, modules=(operation(kind),))
        for kind in kinds
    )


def _experts(fields: Fields) -> Experts | None:
    if _MOE not in _kinds(fields):
        return None
    fields.fixed("moe_latent_size", None, "executors have no experts of a smaller width yet")
    return Experts(
        count=fields.size("n_routed_experts", 8),
        chosen=fields.size("num_experts_per_tok", 2),
        inner=fields.size("moe_intermediate_size", 7688),
        normalised=fields.flag("norm_topk_prob", True),
        scores="sigmoid",
        corrected=True,
        groups=fields.size("n_group", 1),
        chosen_groups=fields.size("topk_group", 1),
        group_best=2,
        scale=fields.number("routed_scaling_factor", 1.0),
        shared=fields.size("moe_shared_expert_intermediate_size", 7688),
    )


def _render(config: ModelConfig) -> dict[str, Any]:
    names: dict[str, str] = {ours: theirs for theirs, ours in _NAMED.items()}
    kinds = [names.get(layer.listed[0].name, MAMBA[1]) for layer in config.layers]
    said = render_common(config, "NemotronHForCausalLM", "nemotron_h") | {
        "layers_block_type": kinds,
        "head_dim": config.head_dim,
        "layer_norm_epsilon": config.norm_eps,
        "mlp_hidden_act": "relu2",
        "time_step_min": _NO_STEP,
        "attention_bias": config.out_bias,
    }
    found = (config.find(i, Mamba) for i in range(config.num_layers))
    if (mamba := next((x for x in found if x is not None), None)) is not None:
        said |= {
            "mamba_num_heads": mamba.heads,
            "mamba_head_dim": mamba.head,
            "n_groups": mamba.groups,
            "ssm_state_size": mamba.state_size,
            "conv_kernel": mamba.kernel,
            "use_conv_bias": mamba.conv_bias,
        }
    if (mixture := config.experts) is not None:
        said |= {
            "n_routed_experts": mixture.count,
            "num_experts_per_tok": mixture.chosen,
            "moe_intermediate_size": mixture.inner,
            "norm_topk_prob": mixture.normalised,
            "n_group": mixture.groups,
            "topk_group": mixture.chosen_groups,
            "routed_scaling_factor": mixture.scale,
            "moe_shared_expert_intermediate_size": mixture.shared,
        }
    return said


def _gguf_given(fields: Fields) -> dict[str, Any]:
    """Return what the file says in other words.

    src/models/nemotron-h.cpp of llama.cpp: a layer with KV heads attends; of the others those with
    a width have an MLP, or a mixture.
    """
    blocks, ahead = layer_count(fields), fields.size(AHEAD, 0)
    if ahead >= blocks:
        raise fields.fault(AHEAD, f"fewer than all {blocks} blocks")
    heads = by_layer(fields, "num_key_value_heads", blocks)
    widths = by_layer(fields, "intermediate_size", blocks)
    other = _MOE if fields.has("n_routed_experts") else _MLP
    kinds = [
        ATTENTION[1] if keys else other if width else MAMBA[1]
        for keys, width in zip(heads, widths, strict=True)
    ]
    count = fields.size("mamba_num_heads")
    inner = fields.size("mamba_d_ssm")
    if inner % count:
        raise fields.fault("mamba_d_ssm", f"a multiple of {count}, the number of heads")
    return {
        "layers_block_type": kinds[: blocks - ahead],
        "num_key_value_heads": max(*heads, 1),
        "intermediate_size": max(*widths, 1),
        "mamba_head_dim": inner // count,
        "norm_topk_prob": fields.flag("norm_topk_prob", False),
    }


_GGUF = GgufSpelling(
    architecture="nemotron_h",
    style="half",
    keys={
        **{key: _SIZES[place][0] if place in _SIZES else place for key, place in GGUF_KEYS.items()},
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
        "expert_weights_norm": "norm_topk_prob",
        "expert_weights_scale": "routed_scaling_factor",
    },
    optional={
        "expert_count": "n_routed_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
        "expert_shared_count": "n_shared_experts",
        "expert_group_count": "n_group",
        "expert_group_used_count": "topk_group",
        AHEAD: AHEAD,
    },
    given=_gguf_given,
    also=("nemotron_h_moe",),
    experts=None,
)

NEMOTRON_H = replace(
    LLAMA,
    name="nemotron_h",
    model_types=("nemotron_h",),
    fields=DENSE
    | BIASES
    | {
        "layers": _layers,
        "experts": _experts,
        "head_dim": lambda f: f.size(f.first("head_dim", "attention_head_dim"), _HEAD),
        "norm_eps": lambda f: f.number(f.first("layer_norm_epsilon", "rms_norm_eps"), _NORM_EPS),
        "activation": lambda f: "relu_squared",
    },
    fixed={
        "mlp_hidden_act": ("relu2", ""),
        "mamba_hidden_act": ("silu", ""),
        "mlp_bias": (False, "executors have no biases in the MLP"),
        "use_bias": (False, "executors have no biases of Mamba-2's products"),
        "sliding_window": (None, "executors have no windows in this family"),
    },
    names=lambda config: _NAMES,
    surplus=lambda config, name: LLAMA.surplus(config, name) or name.startswith("mtp."),
    render=_render,
    view=_view,
    gguf=_GGUF,
)
