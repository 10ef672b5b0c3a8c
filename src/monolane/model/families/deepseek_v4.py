"""DeepSeek-V4: compressed attention, hyper-connections, experts that a token's id tells.

Attention is of three kinds (ops/compressed/spec.py): within a window alone; also to entries of a
few tokens, chosen by an index; also to entries of many. Which a layer has is in ``layer_types``
with ``compress_rates``, or in ``compress_ratios``: 0, 4 and 128 tokens. Streams are several
(model/_hyper.py). All layers are mixtures; in the first ones a table tells a token's experts.
Tensors have the names of the published files. Those of "mtp." predict tokens further ahead, and are
not read. Where a field is not there it means what Transformers takes for it.

GGUF files say ``compress_ratios``, and how many of the first layers have a table.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from monolane.errors import ConfigError
from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._hyper import HYPER, HYPER_OUT, Hyper
from monolane.model._layer_config import LayerConfig
from monolane.model._reduce import NOW
from monolane.model._rotary import Rotary
from monolane.model.families._family import layer_count, render_common
from monolane.model.families._gguf import AHEAD, INDEX_KEYS, GgufSpelling
from monolane.model.families._rotary import THETA, make_rotary, write_stretch
from monolane.model.families._sparse import read_gguf_blocks
from monolane.model.families.llama import DENSE, LLAMA
from monolane.ops import Experts, Role
from monolane.ops.compressed.spec import ENTRIES, INDEX_ENTRIES, Compressed, Compressor

_WINDOWED, _CHOSEN, _HEAVY = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)
_KINDS = (_WINDOWED, _CHOSEN, _HEAVY)
_RATES = {_CHOSEN: 4, _HEAVY: 128}
_TOLD, _ROUTED = "hash_moe", "moe"
_HASHED = 3  # first layers whose experts a table tells, where nothing is said
_MAIN, _COMPRESS = "main", "compress"  # rotaries of layers without entries, and with them
_COMPRESS_THETA = 160000.0
_PART = 64 / 512  # of a head, that is turned
_DEFAULTS: dict[str, Any] = {
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 6,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "sliding_window": 128,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
}
_LAYER = "layers.{i}."
_ATTENTION, _FFN = _LAYER + "attn.", _LAYER + "ffn."
_PARTS = ("wkv.weight", "wgate.weight", "ape", "norm.weight")  # of what makes entries
_MIXED = ("fn", "base", "scale")  # of what mixes streams
_NAMES = {
    Role.EMBEDDING: "embed.weight",
    Role.HEAD: "head.weight",
    Role.FINAL_NORM: "norm.weight",
    Role.ATTENTION_NORM: _LAYER + "attn_norm.weight",
    Role.MLP_NORM: _LAYER + "ffn_norm.weight",
    Role.Q_DOWN: _ATTENTION + "wq_a.weight",
    Role.Q_NORM: _ATTENTION + "q_norm.weight",
    Role.Q: _ATTENTION + "wq_b.weight",
    Role.KV_DOWN: _ATTENTION + "wkv.weight",
    Role.K_NORM: _ATTENTION + "kv_norm.weight",
    Role.SINKS: _ATTENTION + "attn_sink",
    Role.O_DOWN: _ATTENTION + "wo_a.weight",
    Role.O: _ATTENTION + "wo_b.weight",
    Role.INDEX_Q: _ATTENTION + "indexer.wq_b.weight",
    Role.INDEX_WEIGHTS: _ATTENTION + "indexer.weights_proj.weight",
    **{x: f"{_ATTENTION}compressor.{name}" for x, name in zip(ENTRIES, _PARTS, strict=True)},
    **{
        x: f"{_ATTENTION}indexer.compressor.{name}"
        for x, name in zip(INDEX_ENTRIES, _PARTS, strict=True)
    },
    Role.ROUTER: _FFN + "gate.weight",
    Role.ROUTER_CORRECTION: _FFN + "gate.bias",
    Role.EXPERT_TABLE: _FFN + "gate.tid2eid",
    Role.EXPERT_GATE: _FFN + "experts.{e}.w1.weight",
    Role.EXPERT_UP: _FFN + "experts.{e}.w3.weight",
    Role.EXPERT_DOWN: _FFN + "experts.{e}.w2.weight",
    Role.SHARED_GATE: _FFN + "shared_experts.w1.weight",
    Role.SHARED_UP: _FFN + "shared_experts.w3.weight",
    Role.SHARED_DOWN: _FFN + "shared_experts.w2.weight",
    **{
        role: f"{_LAYER}hc_{place}_{part}"
        for place, roles in zip(("attn", "ffn"), HYPER, strict=True)
        for role, part in zip(roles, _MIXED, strict=True)
    },
    **{role: f"hc_head_{part}" for role, part in zip(HYPER_OUT, _MIXED, strict=True)},
}


def _view(fields: Fields) -> Fields:
    there = {name: value for name, value in fields.raw.items() if value is not None}
    return Fields({**_DEFAULTS, **there}, fields.source, fields.spelled)


def _rates(fields: Fields) -> dict[str, int]:
    """Return of how many tokens an entry is, by the kind of attention."""
    said = fields.nested("compress_rates") or Fields({}, fields.source)
    older = {_CHOSEN: "compress_rate_csa", _HEAVY: "compress_rate_hca"}
    return {k: fields.size(older[k], said.size(k, rate)) for k, rate in _RATES.items()}


def _kinds(fields: Fields) -> list[str]:
    """Return the kind of attention of each layer."""
    count = layer_count(fields)
    name = fields.first("layer_types", "compress_ratios")
    said = fields.raw.get(name)
    if said is None:
        return [_HEAVY if i < 2 or i % 2 == 0 else _CHOSEN for i in range(count)]
    kinds = said
    if name == "compress_ratios" and isinstance(said, list):
        by_ratio = {0: _WINDOWED} | {ratio: kind for kind, ratio in _RATES.items()}
        kinds = [by_ratio.get(ratio) if type(ratio) is int else None for ratio in said]
    known = isinstance(kinds, list) and all(kind in _KINDS for kind in kinds[:count])
    # Published files say more: of layers that predict further ahead.
    if not known or len(kinds) < count or (name == "layer_types" and len(kinds) > count):
        words = ", ".join(map(repr, _KINDS)) if name == "layer_types" else "0, 4 or 128"
        raise fields.fault(name, f"a list of {count} kinds of attention, one a layer: {words}")
    return list(kinds[:count])


def _told(fields: Fields) -> list[bool]:
    """Tell of each layer whether a table tells its experts."""
    count, kinds = layer_count(fields), fields.raw.get("mlp_layer_types")
    if kinds is None:
        hashed = fields.size("num_hash_layers", _HASHED, minimum=0)
        return [i < hashed for i in range(count)]
    known = isinstance(kinds, list) and all(kind in (_TOLD, _ROUTED) for kind in kinds)
    if not known or len(kinds) != count:
        expected = f"a list of {count} kinds of mixtures: {_TOLD!r} or {_ROUTED!r}"
        raise fields.fault("mlp_layer_types", expected)
    return [kind == _TOLD for kind in kinds]


def _turned(fields: Fields) -> int:
    """Return how many numbers of a head are turned."""
    width = fields.size("head_dim")
    if fields.has("partial_rotary_factor"):
        return int(width * fields.number("partial_rotary_factor"))
    return fields.size("qk_rope_head_dim", int(width * _PART))


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    rates = _rates(fields)
    plain = Compressed(
        heads=fields.size("num_attention_heads"),
        width=fields.size("head_dim"),
        turned=_turned(fields),
        query_rank=fields.size("q_lora_rank"),
        window=fields.size("sliding_window"),
        groups=fields.size("o_groups"),
        group_rank=fields.size("o_lora_rank"),
    )
    chosen = Compressor(
        ratio=rates[_CHOSEN],
        overlap=True,
        index_heads=fields.size("index_n_heads"),
        index_width=fields.size("index_head_dim"),
        chosen=fields.size("index_topk"),
    )
    kinds = {
        _WINDOWED: plain,
        _CHOSEN: replace(plain, compressor=chosen),
        _HEAVY: replace(plain, compressor=Compressor(ratio=rates[_HEAVY])),
    }
    return tuple(
        LayerConfig(NOW, NOW, experts=True, hashed=told, modules=(kinds[kind], "experts"))
        for kind, told in zip(_kinds(fields), _told(fields), strict=True)
    )


def _experts(fields: Fields) -> Experts:
    inner = fields.size("moe_intermediate_size")
    return Experts(
        count=fields.size("n_routed_experts"),
        chosen=fields.size("num_experts_per_tok"),
        inner=inner,
        normalised=True,
        scores="sqrtsoftplus",
        corrected=True,
        scale=fields.number("routed_scaling_factor"),
        shared=inner,
        limit=fields.number("swiglu_limit"),
    )


def _rotary(fields: Fields, kind: str) -> Rotary:
    """Read the rotary of layers with entries, which may be stretched, or of those without."""
    usual = fields.number("rope_theta", THETA)
    both = fields.nested(fields.first("rope_parameters", "rope_scaling"))
    if both is not None and both.has(_MAIN) and both.has(_COMPRESS):
        inner = both.nested(kind)
    else:
        inner = both if kind == _COMPRESS else None
    theta = fields.number("compress_rope_theta", _COMPRESS_THETA) if kind == _COMPRESS else usual
    if inner is None:
        return Rotary(theta, "interleaved")
    own = {name: x for name, x in inner.raw.items() if name != "partial_rotary_factor"}
    if inner is both:  # whose base is that of the other layers
        own.pop("rope_theta", None)
    if own.get("rope_type", own.get("type")) == "yarn":
        own.setdefault("attention_factor", 1.0)
    plain = {name: x for name, x in fields.raw.items() if name != "partial_rotary_factor"}
    read = Fields(own, inner.source, inner.spelled)
    outside = Fields(plain, fields.source, fields.spelled)
    return make_rotary(outside, read, "interleaved", theta, stretches=("yarn",))


def _hyper(fields: Fields) -> Hyper:
    return Hyper(fields.size("hc_mult"), fields.size("hc_sinkhorn_iters"), fields.number("hc_eps"))


def _surplus(config: ModelConfig, name: str) -> bool:
    """Tell tensors of layers that predict further ahead, and a tied head beside the embedding."""
    tied_head = config.tie_embeddings and name == _NAMES[Role.HEAD]
    return tied_head or name.startswith("mtp.")


def _render(config: ModelConfig) -> dict[str, Any]:
    mixture, hyper, local = config.experts, config.hyper, config.local_rotary
    if mixture is None or hyper is None or local is None:
        raise ConfigError(
            "experts, hyper, local_rotary: expected all, as DeepSeek-V4 has, got None"
        )
    found = [config.operation(i, Compressed) for i in range(config.num_layers)]
    indexed = next((x.compressor for x in found if x.compressor and x.compressor.overlap), None)
    heavy = next((x.compressor for x in found if x.compressor and not x.compressor.overlap), None)
    rates = {_CHOSEN: indexed, _HEAVY: heavy}
    stretches = {_MAIN: local, _COMPRESS: config.rotary}
    part = found[0].turned / found[0].width
    said = render_common(config, "DeepseekV4ForCausalLM", "deepseek_v4") | {
        "hidden_act": "silu",
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        "q_lora_rank": found[0].query_rank,
        "partial_rotary_factor": part,
        "sliding_window": found[0].window,
        "o_groups": found[0].groups,
        "o_lora_rank": found[0].group_rank,
        "layer_types": [_kind_of(x) for x in found],
        "mlp_layer_types": [_TOLD if x.hashed else _ROUTED for x in config.layers],
        "compress_rates": {k: x.ratio if x else _RATES[k] for k, x in rates.items()},
        "rope_parameters": {
            kind: write_stretch(rotary.scaling)
            | {"rope_theta": rotary.theta, "partial_rotary_factor": part}
            for kind, rotary in stretches.items()
        },
        "rope_theta": local.theta,
        "compress_rope_theta": config.rotary.theta,
        "moe_intermediate_size": mixture.inner,
        "n_routed_experts": mixture.count,
        "num_experts_per_tok": mixture.chosen,
        "routed_scaling_factor": mixture.scale,
        "swiglu_limit": mixture.limit,
        "hc_mult": hyper.streams,
        "hc_sinkhorn_iters": hyper.rounds,
        "hc_eps": hyper.eps,
    }
    said.pop("rope_scaling", None)
    if indexed is None:
        return said
    return said | {
        "index_n_heads": indexed.index_heads,
        "index_head_dim": indexed.index_width,
        "index_topk": indexed.chosen,
    }


def _kind_of(attention: Compressed) -> str:
    if attention.compressor is None:
        return _WINDOWED
    return _CHOSEN if attention.compressor.overlap else _HEAVY


_GGUF_PARTS = ("kv", "gate", "ape", "norm")  # as _PARTS
_GGUF_NAMES = {
    Role.Q_NORM: "blk.{i}.attn_q_a_norm.weight",
    Role.Q: "blk.{i}.attn_q_b.weight",
    Role.KV_DOWN: "blk.{i}.attn_kv.weight",
    Role.K_NORM: "blk.{i}.attn_kv_a_norm.weight",
    Role.O_DOWN: "blk.{i}.attn_output_a.weight",
    Role.O: "blk.{i}.attn_output_b.weight",
    Role.EXPERT_TABLE: "blk.{i}.ffn_gate_tid2eid.weight",
    **{
        role: f"blk.{{i}}.{place}_compressor_{part}.weight"
        for place, roles in (("attn", ENTRIES), ("indexer", INDEX_ENTRIES))
        for role, part in zip(roles, _GGUF_PARTS, strict=True)
    },
    **{
        role: f"blk.{{i}}.hc_{place}_{part}.weight"
        for place, roles in zip(("attn", "ffn"), HYPER, strict=True)
        for role, part in zip(roles, _MIXED, strict=True)
    },
    **{role: f"output_hc_{part}.weight" for role, part in zip(HYPER_OUT, _MIXED, strict=True)},
}


def _gguf_given(fields: Fields) -> dict[str, Any]:
    """Return what a GGUF file says in lists, and check what it says twice."""
    fields.fixed("expert_gating_func", 4, "experts of this family are scored by sqrt(softplus)")
    streams = fields.size("hidden_size") * fields.size("hc_mult")
    fields.fixed("streams", streams, "the widths of all streams")
    given = read_gguf_blocks(fields)
    ratios, limits = fields.raw["compress_ratios"], _limits(fields, "swiglu_limit")
    if not isinstance(ratios, np.ndarray) or ratios.ndim != 1 or ratios.dtype.kind not in "iu":
        raise fields.fault("compress_ratios", "a list of whole numbers, one a layer")
    shared = _limits(fields, "shared_limits") if fields.has("shared_limits") else limits
    if len(limits | shared) != 1:
        raise fields.fault("swiglu_limit", "one limit of all layers, and of what all tokens share")
    return given | {"compress_ratios": ratios.tolist(), "swiglu_limit": limits.pop()}


def _limits(fields: Fields, name: str) -> set[float]:
    """Return the limits that a list of one a layer says, or a number of all."""
    said = fields.raw[name]
    if isinstance(said, np.ndarray) and said.ndim == 1 and said.dtype.kind == "f":
        # The shortest decimal that is this float32, as of numbers by themselves.
        return {float(str(x)) for x in said}
    return {fields.number(name)}


_GGUF = GgufSpelling(
    architecture="deepseek4",
    style="interleaved",
    keys={
        **INDEX_KEYS,
        "attention.key_length": "head_dim",
        "attention.q_lora_rank": "q_lora_rank",
        "attention.sliding_window": "sliding_window",
        "attention.output_group_count": "o_groups",
        "attention.output_lora_rank": "o_lora_rank",
        "attention.compress_ratios": "compress_ratios",
        "attention.compress_rope_freq_base": "compress_rope_theta",
        "rope.dimension_count": "qk_rope_head_dim",
        "hyper_connection.count": "hc_mult",
        "hyper_connection.sinkhorn_iterations": "hc_sinkhorn_iters",
        "hyper_connection.epsilon": "hc_eps",
        "hash_layer_count": "num_hash_layers",
        "expert_count": "n_routed_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_count": "n_shared_experts",
        "expert_gating_func": "expert_gating_func",
        "expert_weights_scale": "routed_scaling_factor",
        "expert_weights_norm": "norm_topk_prob",
        "swiglu_clamp_exp": "swiglu_limit",
    },
    optional={
        "swiglu_clamp_shexp": "shared_limits",
        "embedding_length_out": "streams",
        AHEAD: AHEAD,
    },
    given=_gguf_given,
    names=lambda config: _GGUF_NAMES,
    experts=True,
)

DEEPSEEK_V4 = replace(
    LLAMA,
    name="deepseek_v4",
    model_types=("deepseek_v4",),
    fields=DENSE
    | {
        "intermediate_size": lambda f: f.size("moe_intermediate_size"),
        "num_kv_heads": lambda f: 1,
        "head_dim": lambda f: f.size("head_dim"),
        "layers": _layers,
        "rotary": lambda f: _rotary(f, _COMPRESS),
        "local_rotary": lambda f: _rotary(f, _MAIN),
        "experts": _experts,
        "hyper": _hyper,
    },
    fixed={
        "hidden_act": ("silu", ""),
        "attention_bias": (False, "executors have no biases in compressed attention"),
        "mlp_bias": (False, "executors have no biases in the MLP"),
        "num_key_value_heads": (1, "all heads share a key"),
        "scoring_func": ("sqrtsoftplus", ""),
        "topk_method": ("noaux_tc", ""),
        "norm_topk_prob": (True, "weights of this family add up"),
        "n_shared_experts": (1, "all tokens share one MLP, as wide as an expert"),
    },
    names=lambda config: _NAMES,
    surplus=_surplus,
    render=_render,
    view=_view,
    gguf=_GGUF,
)
