"""Kimi Linear: Kimi's delta rule in most layers, latent attention that does not turn in the others.

Which layer attends is in ``layer_types``, or in ``linear_attn_config``, which counts layers from 1;
without both all but every fourth, counted from 0, beginning with the fifth. Mixtures are
DeepSeek-V3's, from layer ``first_k_dense_replace`` on. Where a field is not there it means what
Transformers takes for it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig, ModuleName
from monolane.model._reduce import NOW
from monolane.model._rotary import Rotary
from monolane.model.families._family import layer_count, render_common
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._rotary import FULL
from monolane.model.families._sparse import DENSE as DENSE_MLP
from monolane.model.families._sparse import SPARSE, read_sparse
from monolane.model.families.deepseek import DEEPSEEK_V3
from monolane.model.families.llama import surplus
from monolane.ops import Operation, Role
from monolane.ops.kda.spec import Kda

_LINEAR = "linear_attention"
# What the first files call what Transformers calls otherwise.
_OLD = {
    "max_position_embeddings": "model_max_length",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
}
_DEFAULTS: dict[str, Any] = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1024,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.446,
    "rms_norm_eps": 1e-5,
    "linear_head_dim": 128,
    "linear_num_heads": 32,
    "linear_conv_kernel_dim": 4,
}
_INNER = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
_ATTENTION = "model.layers.{i}.self_attn."
_ROUTED = "model.layers.{i}.block_sparse_moe."
_NAMES = {
    Role.KDA_DECAY_DOWN: _ATTENTION + "f_a_proj.weight",
    Role.KDA_DECAY_UP: _ATTENTION + "f_b_proj.weight",
    Role.KDA_GATE_DOWN: _ATTENTION + "g_a_proj.weight",
    Role.KDA_GATE_UP: _ATTENTION + "g_b_proj.weight",
    Role.KDA_BETA: _ATTENTION + "b_proj.weight",
    Role.KDA_Q_CONV: _ATTENTION + "q_conv1d.weight",
    Role.KDA_K_CONV: _ATTENTION + "k_conv1d.weight",
    Role.KDA_V_CONV: _ATTENTION + "v_conv1d.weight",
    Role.KDA_DECAY: _ATTENTION + "A_log",
    Role.KDA_STEP: _ATTENTION + "dt_bias",
    Role.KDA_NORM: _ATTENTION + "o_norm.weight",
    Role.ROUTER: _ROUTED + "gate.weight",
    Role.ROUTER_CORRECTION: _ROUTED + "gate.e_score_correction_bias",
    Role.EXPERT_GATE: _ROUTED + "experts.{e}.w1.weight",
    Role.EXPERT_UP: _ROUTED + "experts.{e}.w3.weight",
    Role.EXPERT_DOWN: _ROUTED + "experts.{e}.w2.weight",
    Role.SHARED_GATE: _ROUTED + "shared_experts.gate_proj.weight",
    Role.SHARED_UP: _ROUTED + "shared_experts.up_proj.weight",
    Role.SHARED_DOWN: _ROUTED + "shared_experts.down_proj.weight",
}


def _view(fields: Fields) -> Fields:
    there = {name: value for name, value in fields.raw.items() if value is not None}
    for name, old in _OLD.items():
        if old in there:
            there[name] = there.pop(old)
    for old in ("num_experts", "num_local_experts"):
        if old in there:
            there["n_routed_experts"] = there.pop(old)
    inner = fields.nested("linear_attn_config")
    if inner is not None:
        there |= {name: inner.raw[old] for old, name in _INNER.items() if inner.has(old)}
    return Fields(_DEFAULTS | there, fields.source, fields.spelled)


def _kinds(fields: Fields) -> list[str]:
    """Return the kind of each layer."""
    count, kinds = layer_count(fields), fields.raw.get("layer_types")
    inner = fields.nested("linear_attn_config")
    if kinds is None and inner is not None and inner.has("full_attn_layers"):
        listed = inner.layer_ids("full_attn_layers", count + 1) or set()
        return [FULL if i + 1 in listed else _LINEAR for i in range(count)]
    if kinds is None:
        return [FULL if i and i % 4 == 0 else _LINEAR for i in range(count)]
    known = isinstance(kinds, list) and all(kind in (FULL, _LINEAR) for kind in kinds)
    if not known or len(kinds) != count:
        expected = f"a list of {count} kinds of layers: {FULL!r} or {_LINEAR!r}"
        raise fields.fault("layer_types", expected)
    return list(kinds)


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    kda = Kda(
        heads=fields.size("linear_num_heads"),
        width=fields.size("linear_head_dim"),
        kernel=fields.size("linear_conv_kernel_dim"),
    )

    def layer(kind: str, mixed: bool) -> LayerConfig:
        last: ModuleName = "experts" if mixed else "mlp"
        modules: tuple[ModuleName | Operation, ...] = () if kind == FULL else (kda, last)
        return LayerConfig(NOW, NOW, rotary="none", experts=mixed, modules=modules)

    return tuple(map(layer, _kinds(fields), read_sparse(fields)))


def _names(config: ModelConfig) -> Mapping[Role, str]:
    return {**DEEPSEEK_V3.names(config), **_NAMES}


def _render(config: ModelConfig) -> dict[str, Any]:
    latent, mixture = config.latent, config.experts
    assert latent is not None
    found = [config.find(i, Kda) for i in range(config.num_layers)]
    kda = next((x for x in found if x is not None), Kda(heads=32, width=128, kernel=4))
    said = render_common(config, "KimiLinearForCausalLM", "kimi_linear") | {
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "kv_lora_rank": latent.rank,
        "q_lora_rank": None,
        "qk_nope_head_dim": latent.plain,
        "qk_rope_head_dim": latent.turned,
        "v_head_dim": latent.value,
        "linear_num_heads": kda.heads,
        "linear_head_dim": kda.width,
        "linear_conv_kernel_dim": kda.kernel,
        "layer_types": [FULL if x is None else _LINEAR for x in found],
        "mlp_layer_types": [SPARSE if x.experts else DENSE_MLP for x in config.layers],
    }
    del said["rope_theta"]
    if mixture is None:
        return said
    return said | {
        "num_experts": mixture.count,
        "num_experts_per_token": mixture.chosen,
        "moe_intermediate_size": mixture.inner,
        "num_shared_experts": mixture.shared // mixture.inner,
        "moe_renormalize": mixture.normalised,
        "routed_scaling_factor": mixture.scale,
        "num_expert_group": mixture.groups,
        "topk_group": mixture.chosen_groups,
    }


def _gguf_given(fields: Fields) -> dict[str, Any]:
    """Return what a GGUF file says in other words: layers without KV heads have the delta rule."""
    count, heads = layer_count(fields), fields.size("num_attention_heads")
    said = fields.raw.get("num_key_value_heads")
    each = said.tolist() if isinstance(said, np.ndarray) else [said] * count
    if not all(type(x) is int and x >= 0 for x in each) or len(each) != count:
        raise fields.fault("num_key_value_heads", f"a list of {count}, one a layer: 0, or KV heads")
    fields.fixed("expert_gating_func", 2, "experts of this family are chosen by sigmoids")
    turned = fields.size("qk_rope_head_dim")
    return {
        "num_key_value_heads": heads,
        "linear_num_heads": heads,
        "layer_types": [FULL if x else _LINEAR for x in each],
        "qk_nope_head_dim": fields.size("key_length_mla", minimum=turned + 1) - turned,
        "v_head_dim": fields.size("value_length_mla"),
    }


_GGUF = GgufSpelling(
    architecture="kimi-linear",
    style="interleaved",
    keys={
        "ssm.conv_kernel": "linear_conv_kernel_dim",
        "kda.head_dim": "linear_head_dim",
        "attention.kv_lora_rank": "kv_lora_rank",
        "attention.key_length": "key_length",
        "attention.key_length_mla": "key_length_mla",
        "attention.value_length_mla": "value_length_mla",
        "rope.dimension_count": "qk_rope_head_dim",
        "leading_dense_block_count": "first_k_dense_replace",
        "expert_count": "num_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_count": "n_shared_experts",
        "expert_weights_scale": "routed_scaling_factor",
    },
    optional={
        "attention.value_length": "value_length",
        "expert_gating_func": "expert_gating_func",
        "expert_group_count": "n_group",
        "expert_group_used_count": "topk_group",
    },
    given=_gguf_given,
    names=lambda config: {
        Role.K_NORM: "blk.{i}.attn_kv_a_norm.weight",
        Role.KDA_DECAY_DOWN: "blk.{i}.ssm_f_a.weight",
        Role.KDA_DECAY_UP: "blk.{i}.ssm_f_b.weight",
        Role.KDA_GATE_DOWN: "blk.{i}.ssm_g_a.weight",
        Role.KDA_GATE_UP: "blk.{i}.ssm_g_b.weight",
        Role.KDA_BETA: "blk.{i}.ssm_beta.weight",
        Role.KDA_Q_CONV: "blk.{i}.ssm_conv1d_q.weight",
        Role.KDA_K_CONV: "blk.{i}.ssm_conv1d_k.weight",
        Role.KDA_V_CONV: "blk.{i}.ssm_conv1d_v.weight",
        Role.KDA_DECAY: "blk.{i}.ssm_a",
        Role.KDA_STEP: "blk.{i}.ssm_dt.bias",
        Role.KDA_NORM: "blk.{i}.ssm_norm.weight",
    },
    experts=True,
)

KIMI_LINEAR = replace(
    DEEPSEEK_V3,
    name="kimi_linear",
    model_types=("kimi_linear",),
    fields={
        **{k: x for k, x in DEEPSEEK_V3.fields.items() if k != "query_scale"},
        "layers": _layers,
        "rotary": lambda f: Rotary(),  # of no layer
    },
    fixed={
        "hidden_act": ("silu", ""),
        "attention_bias": (False, "executors have no biases in latent attention"),
        "q_lora_rank": (None, "queries of this family have no latent"),
        "mla_use_nope": (True, "no layer of this family turns queries and keys"),
        "moe_router_activation_func": ("sigmoid", ""),
        "moe_layer_freq": (1, "all layers behind the dense ones are mixtures"),
    },
    names=_names,
    surplus=lambda config, name: surplus(config, name),
    render=_render,
    view=_view,
    gguf=_GGUF,
)
