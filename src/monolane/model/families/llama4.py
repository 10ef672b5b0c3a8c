"""Llama 4: most layers attend within chunks, the others see all keys and do not turn.

    llama4_text   the text model by itself
    llama4        with a vision tower, which is not read: the text's fields are in text_config, the
                  names of its tensors begin with "language_model."

Queries and keys that turn are normed behind that, without scales; where they do not turn, queries
grow by position. Experts are weighted by sigmoids, which what they read is multiplied by, beside an
MLP of all tokens; of a layer they lie in one tensor, columns first. ``intermediate_size`` is the
width of an expert. Where a field is not there it means what Transformers takes for it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model._reduce import NOW
from monolane.model.families._family import layer_count, render_common
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._nested import with_tower
from monolane.model.families._rotary import FULL, read_rotary
from monolane.model.families.llama import BIASES, DENSE, LLAMA, NAMES
from monolane.model.families.smollm3 import read_turned
from monolane.ops import Experts, QkNorm, Role, Temperature

_CHUNKED = "chunked_attention"
_CHUNK, _FLOOR, _GROWTH = 8192, 8192, 0.1
_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "intermediate_size_mlp": 16384,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 1,
    "floor_scale": _FLOOR,
    "attn_scale": _GROWTH,
}
_THETA = 5e5
_MLP = "model.layers.{i}.feed_forward."
_NAMES = NAMES | {
    Role.GATE: _MLP + "gate_proj.weight",
    Role.UP: _MLP + "up_proj.weight",
    Role.DOWN: _MLP + "down_proj.weight",
    Role.ROUTER: _MLP + "router.weight",
    Role.EXPERT_GATE: _MLP + "experts.gate_up_proj",
    Role.EXPERT_UP: _MLP + "experts.gate_up_proj",
    Role.EXPERT_DOWN: _MLP + "experts.down_proj",
    Role.SHARED_GATE: _MLP + "shared_expert.gate_proj.weight",
    Role.SHARED_UP: _MLP + "shared_expert.up_proj.weight",
    Role.SHARED_DOWN: _MLP + "shared_expert.down_proj.weight",
}
_UNSHARDED = 128  # experts of the one model that llama.cpp reads without norms of heads


def _view(fields: Fields) -> Fields:
    there = {name: value for name, value in fields.raw.items() if value is not None}
    chunk = {"attention_chunk_size": fields.raw.get("attention_chunk_size", _CHUNK)}  # null: none
    if there.get("no_rope_layers") == []:  # as the first files say that they say nothing
        del there["no_rope_layers"]
    tuned = there.get("attn_temperature_tuning")
    if type(tuned) is int:  # 4, in the first files
        there["attn_temperature_tuning"] = tuned != 0
    return Fields(_DEFAULTS | there | chunk, fields.source, fields.spelled)


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    count, turned = layer_count(fields), read_turned(fields)
    chunk, mixed = fields.optional_size("attention_chunk_size"), _mixed(fields)
    kinds = fields.raw.get("layer_types")
    if kinds is None:
        kinds = [_CHUNKED if turns and chunk is not None else FULL for turns in turned]
    possible = (FULL,) if chunk is None else (FULL, _CHUNKED)
    known = isinstance(kinds, list) and all(kind in possible for kind in kinds)
    if not known or len(kinds) != count:
        names = " or ".join(map(repr, possible))
        raise fields.fault("layer_types", f"a list of {count} kinds of attention: {names}")
    return tuple(
        LayerConfig(
            NOW,
            NOW,
            chunk if kind == _CHUNKED else None,
            chunked=kind == _CHUNKED,
            rotary="main" if turns else "none",
            experts=i in mixed,
        )
        for i, (kind, turns) in enumerate(zip(kinds, turned, strict=True))
    )


def _mixed(fields: Fields) -> set[int]:
    """Return the layers that are mixtures."""
    count, step = layer_count(fields), fields.size("interleave_moe_layer_step")
    said = fields.layer_ids("moe_layers", count)
    return set(range(step - 1, count, step)) if said is None else said


def _experts(fields: Fields) -> Experts | None:
    if not _mixed(fields):
        return None
    inner = fields.size("intermediate_size")
    return Experts(
        count=fields.size("num_local_experts"),
        chosen=fields.size("num_experts_per_tok"),
        inner=inner,
        normalised=False,
        scores="sigmoid",
        shared=inner,
        weigh_inputs=True,
    )


def _normed(fields: Fields) -> bool:
    return fields.flag("use_qk_norm", True)


def _temperature(fields: Fields) -> Temperature | None:
    if not fields.flag("attn_temperature_tuning", True):
        return None
    growth, context = fields.number("attn_scale"), fields.size("floor_scale")
    return Temperature(growth, context, ahead=1, unturned_alone=True)


def _render(config: ModelConfig) -> dict[str, Any]:
    layers, mixture, growing = config.layers, config.experts, config.attention_temperature
    chunks = [layer.window for layer in layers if layer.window is not None]
    raw = render_common(config, "Llama4ForCausalLM", "llama4_text") | {
        "hidden_act": "silu",
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        "intermediate_size_mlp": config.intermediate_size,
        "attention_chunk_size": max(chunks, default=None),
        "layer_types": [_CHUNKED if layer.chunked else FULL for layer in layers],
        "no_rope_layers": [int(layer.rotary != "none") for layer in layers],
        "use_qk_norm": config.qk_norm is not None,
        "attn_temperature_tuning": growing is not None,
        "moe_layers": [i for i, layer in enumerate(layers) if layer.experts],
    }
    if config.out_bias:
        raw["attention_bias"] = True
    if growing is not None:
        raw |= {"attn_scale": growing.growth, "floor_scale": growing.context}
    if mixture is not None:
        raw |= {
            "intermediate_size": mixture.inner,
            "num_local_experts": mixture.count,
            "num_experts_per_tok": mixture.chosen,
        }
    return raw


def _gguf_given(fields: Fields) -> Mapping[str, Any]:
    """Return what llama.cpp has of all its files: src/models/llama4.cpp."""
    return {
        "no_rope_layer_interval": 4,
        "attention_chunk_size": _CHUNK,
        "floor_scale": _FLOOR,
        "attn_scale": _GROWTH,
        "use_qk_norm": fields.size("num_local_experts") != _UNSHARDED,
    }


LLAMA4_TEXT = replace(
    LLAMA,
    name="llama4_text",
    model_types=("llama4_text",),
    fields=DENSE
    | BIASES
    | {
        "intermediate_size": lambda f: f.size("intermediate_size_mlp"),
        "layers": _layers,
        "rotary": lambda f: read_rotary(f, "interleaved", _THETA),
        "experts": _experts,
        "qk_norm": lambda f: QkNorm.HEAD if _normed(f) else None,
        "qk_unscaled": _normed,
        "norm_turned": _normed,
        "attention_temperature": _temperature,
    },
    fixed={"hidden_act": ("silu", "")},
    names=lambda config: _NAMES,
    columns_first=frozenset((Role.EXPERT_GATE, Role.EXPERT_UP, Role.EXPERT_DOWN)),
    halves=True,
    render=_render,
    view=_view,
    gguf=GgufSpelling(
        architecture="llama4",
        style="interleaved",
        keys={
            "feed_forward_length": "intermediate_size_mlp",
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "intermediate_size",
            "interleave_moe_layer_step": "interleave_moe_layer_step",
        },
        given=_gguf_given,
        experts=True,
    ),
)
LLAMA4 = with_tower(
    LLAMA4_TEXT,
    "llama4",
    "Llama4ForConditionalGeneration",
    ("", "language_model."),
    ("vision_model.", "multi_modal_projector."),
)
