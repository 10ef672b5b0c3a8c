"""Granite 4: Mamba-2 in most layers, attention in the others, an MLP or a mixture in all of them.

A layer's kind is in ``layer_types``; where that is not there, all have Mamba-2. Attention turns
nothing unless ``position_embedding_type`` is "rope". Without experts a layer's MLP is the one that
all tokens share, of ``shared_intermediate_size``. The multipliers are Granite's.
"""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig, ModuleName
from monolane.model._reduce import NOW
from monolane.model.families._family import layer_count
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._mamba import (
    ATTENTION,
    GGUF_KEYS,
    MAMBA,
    by_layer,
    mamba_names,
    read_mamba,
    write_mamba,
)
from monolane.model.families.granite import GRANITE
from monolane.model.families.llama import NAMES
from monolane.ops import Experts, Role
from monolane.ops.mamba.spec import Mamba

_LAYER = "model.layers.{i}."
_SHARED, _ROUTED = _LAYER + "shared_mlp.", _LAYER + "block_sparse_moe."
_NAMES = {
    **NAMES,
    **mamba_names(_LAYER + "mamba."),
    Role.GATE_UP: _SHARED + "input_linear.weight",
    Role.DOWN: _SHARED + "output_linear.weight",
    Role.ROUTER: _ROUTED + "router.layer.weight",
    Role.EXPERT_GATE: _ROUTED + "input_linear.weight",
    Role.EXPERT_UP: _ROUTED + "input_linear.weight",
    Role.EXPERT_DOWN: _ROUTED + "output_linear.weight",
    Role.SHARED_GATE: _SHARED + "input_linear.weight",
    Role.SHARED_UP: _SHARED + "input_linear.weight",
    Role.SHARED_DOWN: _SHARED + "output_linear.weight",
}


def _attends(fields: Fields) -> list[bool]:
    """Tell of each layer whether it attends."""
    count, name = layer_count(fields), fields.first("layer_types", "layers_block_type")
    kinds = fields.raw.get(name)
    if kinds is None:
        return [False] * count
    known = isinstance(kinds, list) and all(kind in (*MAMBA, *ATTENTION) for kind in kinds)
    if not known or len(kinds) != count:
        expected = f"a list of {count} kinds of layers: {MAMBA[0]!r} or {ATTENTION[0]!r}"
        raise fields.fault(name, expected)
    return [kind in ATTENTION for kind in kinds]


def _has_experts(fields: Fields) -> bool:
    return fields.size("num_local_experts", 8, minimum=0) > 0


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    attends, mixed = _attends(fields), _has_experts(fields)
    turned = fields.choice("position_embedding_type", ("rope", "nope"), "nope") == "rope"
    mamba = None if all(attends) else read_mamba(fields)
    last: ModuleName = "experts" if mixed else "mlp"
    return tuple(
        LayerConfig(
            NOW,
            NOW,
            rotary="main" if turned else "none",
            experts=mixed,
            modules=() if attend or mamba is None else (mamba, last),
        )
        for attend in attends
    )


def _shared_width(fields: Fields) -> int:
    return fields.size("shared_intermediate_size", 1024)


def _experts(fields: Fields) -> Experts | None:
    if not _has_experts(fields):
        return None
    return Experts(
        count=fields.size("num_local_experts", 8),
        chosen=fields.size("num_experts_per_tok", 2),
        inner=fields.size("intermediate_size"),
        normalised=True,  # softmax of the chosen ones' logits: the same
        shared=_shared_width(fields),
    )


def _render(config: ModelConfig) -> dict[str, Any]:
    mambas = [config.find(i, Mamba) for i in range(config.num_layers)]
    mamba, mixture = next((x for x in mambas if x is not None), None), config.experts
    turned = any(layer.rotary == "main" for layer in config.layers)
    said = GRANITE.render(config) | {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "layer_types": [ATTENTION[0] if x is None else MAMBA[0] for x in mambas],
        "position_embedding_type": "rope" if turned else "nope",
        "shared_intermediate_size": config.intermediate_size,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "mamba_n_heads": 1,  # of no layer, where there is none: Transformers asks that it divides
    }
    del said["sliding_window"], said["use_sliding_window"]
    if mamba is not None:
        said |= write_mamba(mamba, config.hidden_size)
    if mixture is None:
        return said
    return said | {
        "shared_intermediate_size": mixture.shared,
        "num_local_experts": mixture.count,
        "num_experts_per_tok": mixture.chosen,
        "intermediate_size": mixture.inner,
    }


def _gguf_given(fields: Fields) -> dict[str, Any]:
    """Return what the file says in other words: layers without KV heads have Mamba-2.

    src/models/granite-hybrid.cpp of llama.cpp: rope.scaling.finetuned says whether attention turns.
    """
    count = layer_count(fields)
    heads = by_layer(fields, "num_key_value_heads", count)
    turned = fields.flag("attention_turned", True)
    given: dict[str, Any] = {
        "num_key_value_heads": max(*heads, 1),
        "layer_types": [ATTENTION[0] if x else MAMBA[0] for x in heads],
        "position_embedding_type": "rope" if turned else "nope",
    }
    if not fields.has("num_local_experts"):
        given |= {
            "num_local_experts": 0,
            "shared_intermediate_size": fields.size("intermediate_size"),
        }
    return given


_GRANITE_GGUF = GRANITE.gguf
assert _GRANITE_GGUF is not None

GRANITEMOEHYBRID = replace(
    GRANITE,
    name="granitemoehybrid",
    model_types=("granitemoehybrid",),
    fields={
        **GRANITE.fields,
        "layers": _layers,
        "experts": _experts,
        "intermediate_size": lambda f: (
            f.size("intermediate_size") if _has_experts(f) else _shared_width(f)
        ),
    },
    names=lambda config: _NAMES,
    halves=True,
    render=_render,
    gguf=GgufSpelling(
        architecture="granitehybrid",
        style="interleaved",
        keys={
            **_GRANITE_GGUF.keys,
            **GGUF_KEYS,
            "rope.scaling.finetuned": "attention_turned",
        },
        optional={
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_shared_feed_forward_length": "shared_intermediate_size",
        },
        given=_gguf_given,
        experts=None,
    ),
)
