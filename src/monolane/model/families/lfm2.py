"""LFM2: gated short convolutions in most layers, attention with norms of heads in the others.

A layer's kind is in ``layer_types``; older files have ``full_attn_idxs``, the layers that attend,
by default all. The width of the MLPs is two thirds of what config.json says, times a factor,
rounded up to a multiple, unless ``block_auto_adjust_ff_dim`` is false. LFM2-MoE has mixtures of
experts from layer ``num_dense_layers`` on, chosen by sigmoids with a correction. Where a field is
not there it means what Transformers takes for it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig, ModuleName
from monolane.model._reduce import NOW
from monolane.model.families._family import layer_count, render_common
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._rotary import FULL, read_rotary
from monolane.model.families.llama import DENSE, LLAMA, NAMES
from monolane.ops import Experts, Operation, QkNorm, Role
from monolane.ops.conv.spec import Conv

_CONV = "conv"  # what config.json calls a layer with a short convolution
_THETA, _NORM_EPS = 1e6, 1e-5
_LAYER = "model.layers.{i}."
_MLP = _LAYER + "feed_forward."
_NAMES = NAMES | {
    Role.ATTENTION_NORM: _LAYER + "operator_norm.weight",
    Role.Q_NORM: _LAYER + "self_attn.q_layernorm.weight",
    Role.K_NORM: _LAYER + "self_attn.k_layernorm.weight",
    Role.O: _LAYER + "self_attn.out_proj.weight",
    Role.CONV_IN: _LAYER + "conv.in_proj.weight",
    Role.CONV_TAPS: _LAYER + "conv.conv.weight",
    Role.CONV_OUT: _LAYER + "conv.out_proj.weight",
    Role.MLP_NORM: _LAYER + "ffn_norm.weight",
    Role.GATE: _MLP + "w1.weight",
    Role.UP: _MLP + "w3.weight",
    Role.DOWN: _MLP + "w2.weight",
    Role.FINAL_NORM: "model.embedding_norm.weight",
}
_ROUTED = {
    Role.ROUTER: _MLP + "gate.weight",
    Role.ROUTER_CORRECTION: _MLP + "expert_bias",
    Role.EXPERT_GATE: _MLP + "experts.{e}.w1.weight",
    Role.EXPERT_UP: _MLP + "experts.{e}.w3.weight",
    Role.EXPERT_DOWN: _MLP + "experts.{e}.w2.weight",
}


def _kinds(fields: Fields) -> list[str]:
    """Return the kind of each layer."""
    count = layer_count(fields)
    kinds: list[str] | None = fields.raw.get("layer_types")
    if kinds is None:
        attending = fields.layer_ids("full_attn_idxs", count)
        return [FULL if attending is None or i in attending else _CONV for i in range(count)]
    known = isinstance(kinds, list) and all(kind in (FULL, _CONV) for kind in kinds)
    if not known or len(kinds) != count:
        expected = f"a list of {count} kinds of layers: {FULL!r} or {_CONV!r}"
        raise fields.fault("layer_types", expected)
    return kinds


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    conv = Conv(channels=fields.size("hidden_size"), taps=fields.size("conv_L_cache", 3))
    return tuple(_layer(kind, conv, experts=False) for kind in _kinds(fields))


def _layer(kind: str, conv: Conv, *, experts: bool) -> LayerConfig:
    last: ModuleName = "experts" if experts else "mlp"
    modules: tuple[ModuleName | Operation, ...] = () if kind == FULL else (conv, last)
    return LayerConfig(NOW, NOW, experts=experts, modules=modules)


def _mixed_layers(fields: Fields) -> tuple[LayerConfig, ...]:
    dense = fields.size("num_dense_layers", 2, minimum=0)
    conv = Conv(channels=fields.size("hidden_size"), taps=fields.size("conv_L_cache", 3))
    kinds = enumerate(_kinds(fields))
    return tuple(_layer(kind, conv, experts=i >= dense) for i, kind in kinds)


def _experts(fields: Fields) -> Experts | None:
    if fields.size("num_dense_layers", 2, minimum=0) >= layer_count(fields):
        return None
    return Experts(
        count=fields.size(fields.first("num_experts", "num_local_experts"), 32),
        chosen=fields.size("num_experts_per_tok", 4),
        inner=fields.size("moe_intermediate_size", 1792),
        normalised=fields.flag("norm_topk_prob", True),
        scores="sigmoid",
        corrected=fields.flag("use_expert_bias", True),
        scale=fields.number("routed_scaling_factor", 1.0),
    )


def _width(fields: Fields) -> int:
    """Return the inner width of the MLPs."""
    width = fields.size(fields.first("block_ff_dim", "intermediate_size"))
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return width
    factor = fields.number("block_ffn_dim_multiplier", 1.0)
    multiple = fields.size("block_multiple_of", 256)
    return -(-int(factor * int(2 * width / 3)) // multiple) * multiple


def _tied(fields: Fields) -> bool:
    return fields.flag(fields.first("tie_embedding", "tie_word_embeddings"), True)


def _render(config: ModelConfig) -> dict[str, Any]:
    convs = [config.find(i, Conv) for i in range(config.num_layers)]
    taps = {conv.taps for conv in convs if conv is not None}
    return render_common(config, "Lfm2ForCausalLM", "lfm2") | {
        "head_dim": config.head_dim,
        "norm_eps": config.norm_eps,
        "block_auto_adjust_ff_dim": False,
        "conv_bias": False,
        "conv_L_cache": max(taps, default=3),
        "layer_types": [FULL if conv is None else _CONV for conv in convs],
    }


def _render_mixed(config: ModelConfig) -> dict[str, Any]:
    said = _render(config) | {"architectures": ["Lfm2MoeForCausalLM"], "model_type": "lfm2_moe"}
    said["num_dense_layers"] = sum(not layer.experts for layer in config.layers)
    mixture = config.experts
    if mixture is None:
        return said
    return said | {
        "num_experts": mixture.count,
        "num_experts_per_tok": mixture.chosen,
        "moe_intermediate_size": mixture.inner,
        "norm_topk_prob": mixture.normalised,
        "use_expert_bias": mixture.corrected,
        "routed_scaling_factor": mixture.scale,
    }


def _mixed_names(config: ModelConfig) -> Mapping[Role, str]:
    del config
    return {**_NAMES, **_ROUTED}


def _gguf_given(fields: Fields) -> dict[str, Any]:
    """Return what the file says in other words: layers without KV heads have a convolution."""
    count, said = layer_count(fields), fields.raw.get("num_key_value_heads")
    heads = said.tolist() if isinstance(said, np.ndarray) else [said] * count
    known = all(type(x) is int and x >= 0 for x in heads) and len(heads) == count
    if not known or len({x for x in heads if x}) > 1:
        expected = f"a list of {count}, one a layer: 0, or as many KV heads as the others have"
        raise fields.fault("num_key_value_heads", expected)
    return {
        "num_key_value_heads": max(*heads, 1),
        "layer_types": [FULL if x else _CONV for x in heads],
        "block_auto_adjust_ff_dim": False,
    }


def _mixed_gguf_given(fields: Fields) -> dict[str, Any]:
    """Return the same of a file with experts, which llama.cpp chooses by sigmoids, normalised."""
    fields.fixed("expert_gating_func", 2, "experts of this family are chosen by sigmoids")
    return _gguf_given(fields) | {"norm_topk_prob": True, "use_expert_bias": True}


_GGUF = GgufSpelling(
    architecture="lfm2",
    style="half",
    keys={
        "attention.layer_norm_rms_epsilon": "norm_eps",
        "shortconv.l_cache": "conv_L_cache",
    },
    given=_gguf_given,
    names=lambda config: {
        Role.CONV_IN: "blk.{i}.shortconv.in_proj.weight",
        Role.CONV_TAPS: "blk.{i}.shortconv.conv.weight",
        Role.CONV_OUT: "blk.{i}.shortconv.out_proj.weight",
        Role.FINAL_NORM: "token_embd_norm.weight",
    },
)

LFM2 = replace(
    LLAMA,
    name="lfm2",
    model_types=("lfm2",),
    fields=DENSE
    | {
        "layers": _layers,
        "intermediate_size": _width,
        "qk_norm": lambda f: QkNorm.HEAD,
        "rotary": lambda f: read_rotary(f, "half", _THETA),
        "norm_eps": lambda f: f.number("norm_eps", default=_NORM_EPS),
        "tie_embeddings": _tied,
    },
    fixed={"conv_bias": (False, "executors have no biases beside convolutions")},
    names=lambda config: _NAMES,
    render=_render,
    gguf=_GGUF,
)
LFM2_MOE = replace(
    LFM2,
    name="lfm2_moe",
    model_types=("lfm2_moe",),
    fields={
        **LFM2.fields,
        "layers": _mixed_layers,
        "experts": _experts,
        "intermediate_size": lambda f: f.size("intermediate_size"),
    },
    names=_mixed_names,
    render=_render_mixed,
    gguf=replace(
        _GGUF,
        architecture="lfm2moe",
        keys={
            **_GGUF.keys,
            "leading_dense_block_count": "num_dense_layers",
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_gating_func": "expert_gating_func",
        },
        given=_mixed_gguf_given,
        experts=True,
    ),
)
