"""Hunyuan, dense and with mixtures: a Llama with norms of each head behind the rotary embedding.

Mixtures are in all layers, of experts as wide as the MLP that all tokens share. A stretch "dynamic"
with an ``alpha`` is a larger base, the same for all lengths.
"""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model._rotary import Rotary
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._rotary import THETA, read_rotary
from monolane.model.families.llama import BIASES, DENSE, LLAMA, NAMES, read_layers, render_as
from monolane.ops import Experts, QkNorm, Role

_NORM_EPS = 1e-5
_LAYER = "model.layers.{i}."
_MLP = _LAYER + "mlp."
_NAMES = {
    **NAMES,
    Role.Q_NORM: _LAYER + "self_attn.query_layernorm.weight",
    Role.K_NORM: _LAYER + "self_attn.key_layernorm.weight",
}
_ROUTED = {
    Role.ROUTER: _MLP + "gate.wg.weight",
    Role.EXPERT_GATE: _MLP + "experts.{e}.gate_proj.weight",
    Role.EXPERT_UP: _MLP + "experts.{e}.up_proj.weight",
    Role.EXPERT_DOWN: _MLP + "experts.{e}.down_proj.weight",
    Role.SHARED_GATE: _MLP + "shared_mlp.gate_proj.weight",
    Role.SHARED_UP: _MLP + "shared_mlp.up_proj.weight",
    Role.SHARED_DOWN: _MLP + "shared_mlp.down_proj.weight",
}


def _rotary(fields: Fields) -> Rotary:
    inner = fields.nested(fields.first("rope_parameters", "rope_scaling"))
    if inner is None or not inner.has("alpha"):
        return read_rotary(fields, "half")
    inner.choice(inner.first("rope_type", "type"), ("dynamic",))
    head = DENSE["head_dim"](fields)
    if head <= 2:
        raise fields.fault("head_dim", "more than 2 with an alpha")
    theta = inner.number("rope_theta", fields.number("rope_theta", THETA))
    return Rotary(theta * inner.number("alpha") ** (head / (head - 2)), "half")


def _alike(fields: Fields, name: str, default: int) -> int:
    """Read a size that files may say of each layer, and that is one of all."""
    said = fields.raw.get(name)
    if isinstance(said, list) and said and said == said[:1] * len(said):
        fields = Fields({name: said[0]}, fields.source, fields.spelled)
    return fields.size(name, default)


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    return tuple(replace(layer, experts=True) for layer in read_layers(fields))


def _experts(fields: Fields) -> Experts:
    inner = fields.size("intermediate_size")
    return Experts(
        count=_alike(fields, fields.first("num_experts", "num_local_experts"), 1),
        chosen=_alike(fields, fields.first("moe_topk", "num_experts_per_tok"), 1),
        inner=inner,
        normalised=True,
        shared=inner,
    )


def _render_moe(config: ModelConfig) -> dict[str, Any]:
    assert config.experts is not None
    return render_as("HunYuanMoEV1", "hunyuan_v1_moe")(config) | {
        "num_experts": config.experts.count,
        "moe_topk": config.experts.chosen,
    }


def _gguf_given(fields: Fields) -> dict[str, Any]:
    for name in ("expert_inner", "shared_inner"):
        if fields.has(name) and fields.size(name) != fields.size("intermediate_size"):
            raise fields.fault(name, f"{fields.size('intermediate_size')}, as wide as MLPs are")
    fields.fixed("shared_count", 1, "all tokens of this family share one MLP")
    return {}


_GGUF = GgufSpelling(architecture="hunyuan-dense", style="half")

HUNYUAN_V1_DENSE = replace(
    LLAMA,
    name="hunyuan_v1_dense",
    model_types=("hunyuan_v1_dense",),
    fields=DENSE
    | BIASES
    | {
        "rotary": _rotary,
        "norm_eps": lambda f: f.number("rms_norm_eps", _NORM_EPS),
        "qk_norm": lambda f: QkNorm.HEAD,
        "norm_turned": lambda f: True,
    },
    fixed={"hidden_act": ("silu", "")},
    names=lambda config: _NAMES,
    render=render_as("HunYuanDenseV1", "hunyuan_v1_dense"),
    gguf=_GGUF,
)
HUNYUAN_V1_MOE = replace(
    HUNYUAN_V1_DENSE,
    name="hunyuan_v1_moe",
    model_types=("hunyuan_v1_moe",),
    fields={**HUNYUAN_V1_DENSE.fields, "layers": _layers, "experts": _experts},
    names=lambda config: {**_NAMES, **_ROUTED},
    render=_render_moe,
    gguf=replace(
        _GGUF,
        architecture="hunyuan-moe",
        keys={"expert_count": "num_experts", "expert_used_count": "moe_topk"},
        optional={
            "expert_feed_forward_length": "expert_inner",
            "expert_shared_feed_forward_length": "shared_inner",
            "expert_shared_count": "shared_count",
        },
        given=_gguf_given,
        experts=True,
    ),
)
