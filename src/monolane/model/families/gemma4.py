"""Gemma 4, its text: heads of two widths, normed values, and layers that read others' keys.

    gemma4_text   the text model by itself
    gemma4        with towers for pictures and sound, which are not read: the text's fields are in
                  text_config, the names of its tensors begin with "model.language_model."
    gemma4_unified_text, gemma4_unified
                  the same of 12B, which projects pictures and sound in place of towers, and has
                  neither per-layer embeddings nor mixtures; some defaults are its own

Layers with a window have heads of ``head_dim``, global ones of ``global_head_dim`` and, where keys
are values, ``num_global_key_value_heads``; newer files say both in ``per_layer_config``. The last
``num_kv_shared_layers`` read the keys of the last layer of their kind before them. Where a field is
not there it means what Transformers takes for it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from monolane.errors import ConfigError
from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig, ModuleConfig, ModuleName
from monolane.model._rotary import Rotary
from monolane.model.families._family import layer_count, render_common
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._nested import with_tower
from monolane.model.families._rotary import FULL, WINDOWED, read_layer_rotary, write_stretch
from monolane.model.families.gemma3 import GEMMA3_TEXT, read_embedding_scale
from monolane.model.families.llama import DENSE, NAMES, read_layers
from monolane.ops import Experts, QkNorm, Role
from monolane.ops.per_layer.spec import PerLayer

_DEFAULTS: dict[str, Any] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "vocab_size": 262144,
    "max_position_embeddings": 131072,
    "sliding_window": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262144,
}
_UNIFIED_DEFAULTS = {
    **{name: x for name, x in _DEFAULTS.items() if "per_layer" not in name},
    "max_position_embeddings": 262144,
    "sliding_window": 1024,
}
_PATTERN = 6  # every so many layers, counted from 1, one is global
_THETA, _LOCAL_THETA, _PART = 1e6, 1e4, 0.25
_ROTARIES: Mapping[str, Mapping[str, Any]] = {
    FULL: {"rope_type": "proportional", "partial_rotary_factor": _PART, "rope_theta": _THETA},
    WINDOWED: {"rope_type": "default", "rope_theta": _LOCAL_THETA},
}
_LAYER = "model.layers.{i}."
_NAMES = NAMES | {
    Role.Q_NORM: _LAYER + "self_attn.q_norm.weight",
    Role.K_NORM: _LAYER + "self_attn.k_norm.weight",
    Role.POST_ATTENTION_NORM: _LAYER + "post_attention_layernorm.weight",
    Role.MLP_NORM: _LAYER + "pre_feedforward_layernorm.weight",
    Role.POST_MLP_NORM: _LAYER + "post_feedforward_layernorm.weight",
    Role.LAYER_SCALE: _LAYER + "layer_scalar",
    Role.PER_LAYER_EMBEDDING: "model.embed_tokens_per_layer.weight",
    Role.PER_LAYER_PROJECTION: "model.per_layer_model_projection.weight",
    Role.PER_LAYER_NORM: "model.per_layer_projection_norm.weight",
    Role.PER_LAYER_GATE: _LAYER + "per_layer_input_gate.weight",
    Role.PER_LAYER_OUT: _LAYER + "per_layer_projection.weight",
    Role.POST_THIRD_NORM: _LAYER + "post_per_layer_input_norm.weight",
}
# Where a mixture is beside the MLP: what each says is normed, and then their sum.
_MIXED_NAMES = {
    Role.POST_MLP_NORM: _LAYER + "post_feedforward_layernorm_1.weight",
    Role.THIRD_NORM: _LAYER + "pre_feedforward_layernorm_2.weight",
    Role.POST_THIRD_NORM: _LAYER + "post_feedforward_layernorm_2.weight",
    Role.JOINT_NORM: _LAYER + "post_feedforward_layernorm.weight",
    Role.POST_FOURTH_NORM: _LAYER + "post_per_layer_input_norm.weight",
    Role.ROUTER_NORM: _LAYER + "router.scale",
    Role.ROUTER: _LAYER + "router.proj.weight",
    Role.EXPERT_SCALES: _LAYER + "router.per_expert_scale",
    Role.EXPERT_GATE: _LAYER + "experts.gate_up_proj",
    Role.EXPERT_UP: _LAYER + "experts.gate_up_proj",
    Role.EXPERT_DOWN: _LAYER + "experts.down_proj",
}
_MIXED_GGUF_NAMES = {
    Role.POST_MLP_NORM: "blk.{i}.post_ffw_norm_1.weight",
    Role.THIRD_NORM: "blk.{i}.pre_ffw_norm_2.weight",
    Role.POST_THIRD_NORM: "blk.{i}.post_ffw_norm_2.weight",
    Role.JOINT_NORM: "blk.{i}.post_ffw_norm.weight",
    Role.POST_FOURTH_NORM: "blk.{i}.post_norm.weight",
    Role.ROUTER_NORM: "blk.{i}.ffn_gate_inp.scale",
    Role.EXPERT_SCALES: "blk.{i}.ffn_down_exps.scale",
}
# What files may hold of layers that read the keys of earlier ones, and nobody reads.
_OF_KEYS = (Role.K, Role.V, Role.K_NORM)


def _with(defaults: Mapping[str, Any]) -> Callable[[Fields], Fields]:
    def view(fields: Fields) -> Fields:
        there = {name: value for name, value in fields.raw.items() if value is not None}
        rotaries = {} if "rope_parameters" in there else {"rope_parameters": _ROTARIES}
        return Fields({**defaults, **rotaries, **there}, fields.source, fields.spelled)

    return view


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    window = fields.size("sliding_window")
    layers = list(read_layers(fields, window, lambda i: (i + 1) % _PATTERN != 0))
    layers[-1] = replace(layers[-1], window=None)  # whatever the file says of the last one
    modules, mixed = _modules(fields, len(layers)), fields.flag("enable_moe_block", False)
    return tuple(
        replace(_sized(fields, i, layer), modules=modules, experts=mixed)
        for i, layer in enumerate(share_keys(fields, layers))
    )


def share_keys(fields: Fields, layers: Sequence[LayerConfig]) -> list[LayerConfig]:
    """Return layers of which the last read the keys of the last of their kind before them."""
    found, count = list(layers), len(layers)
    first = count - fields.size("num_kv_shared_layers", 0, minimum=0)
    for i, layer in enumerate(layers):
        alike = [j for j in range(min(i, first)) if layers[j].window == layer.window]
        if i >= first and not alike:
            expected = f"fewer than {count - i}: layer {i} is the first of its kind"
            raise fields.fault("num_kv_shared_layers", expected)
        found[i] = replace(layer, keys_of=alike[-1] if i >= first else None)
    return found


def _modules(fields: Fields, count: int) -> tuple[ModuleName | ModuleConfig, ...]:
    """Return a layer's modules, where they are not attention and an MLP alone."""
    inner = fields.size("hidden_size_per_layer_input", 0, minimum=0)
    mixed = fields.flag("enable_moe_block", False)
    experts = (ModuleConfig("experts", beside=True, joint_norm=True),) if mixed else ()
    if inner == 0:
        return ("attention", "mlp", *experts) if mixed else ()
    rows = fields.size("vocab_size_per_layer_input")
    if rows < fields.size("vocab_size"):
        raise fields.fault(
            "vocab_size_per_layer_input", "at least vocab_size: each token has a row"
        )
    operation = PerLayer(inner=inner, layers=count, rows=rows, activation="gelu_tanh")
    own = ModuleConfig(operation, norm_before=False, norm_after=True)
    return ("attention", "mlp", *experts, own)


def _experts(fields: Fields) -> Experts | None:
    if not fields.flag("enable_moe_block", False):
        return None
    return Experts(
        count=fields.size("num_experts"),
        chosen=fields.size("top_k_experts"),
        inner=fields.size("moe_intermediate_size"),
        normalised=True,
        router_norm=True,
        each_scaled=True,
    )


def _names(config: ModelConfig) -> Mapping[Role, str]:
    return _NAMES if config.experts is None else _NAMES | _MIXED_NAMES


def _sized(fields: Fields, i: int, layer: LayerConfig) -> LayerConfig:
    """Return a layer with its own sizes and its rotary."""
    own = layer.keys_of is None
    wide = fields.flag("use_double_wide_mlp", False) and not own
    inner = 2 * fields.size("intermediate_size") if wide else None
    if layer.window is not None:
        return replace(layer, rotary="local", intermediate_size=inner)
    alike = fields.flag("attention_k_eq_v", False)
    said = fields.nested("per_layer_config")
    if said is not None:
        # Transformers writes numbers of layers with as many digits as the last one has.
        name = next((x for x in said.raw if x.isdecimal() and int(x) == i), str(i))
        place = said.nested(name) or Fields({}, said.source)
        head_dim, kv_heads = place.optional_size("head_dim"), "num_key_value_heads"
    else:
        place, head_dim = fields, fields.size("global_head_dim")
        kv_heads = "num_global_key_value_heads" if alike else ""
    return replace(
        layer,
        intermediate_size=inner,
        head_dim=head_dim,
        num_kv_heads=place.optional_size(kv_heads) if kv_heads else None,
        key_is_value=alike and own,
    )


def _rotary(fields: Fields, kind: str, theta: float) -> Rotary:
    return read_layer_rotary(fields, kind, "half", theta)


def _render(config: ModelConfig) -> dict[str, Any]:
    if (local := config.local_rotary) is None:
        raise ConfigError("local_rotary: expected one, as Gemma 4 has, got None")
    layers = config.layers
    per_layer = config.find(0, PerLayer)
    full = [i for i, layer in enumerate(layers) if layer.window is None]
    raw = render_common(config, "Gemma4ForCausalLM", "gemma4_text") | {
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        "layer_types": [FULL if layer.window is None else WINDOWED for layer in layers],
        "sliding_window": max((x.window for x in layers if x.window is not None), default=512),
        "num_kv_shared_layers": sum(layer.keys_of is not None for layer in layers),
        "attention_k_eq_v": any(layer.key_is_value for layer in layers),
        "use_double_wide_mlp": any(layer.intermediate_size is not None for layer in layers),
        "hidden_size_per_layer_input": 0 if per_layer is None else per_layer.inner,
        "vocab_size_per_layer_input": config.vocab_size if per_layer is None else per_layer.rows,
        "final_logit_softcapping": config.logit_cap,
        "per_layer_config": {
            str(i): {
                name: layers[i].sizes[ours]
                for ours, name in (
                    ("head_dim", "head_dim"),
                    ("num_kv_heads", "num_key_value_heads"),
                )
                if ours in layers[i].sizes
            }
            for i in full
        },
        "rope_parameters": {
            kind: write_stretch(rotary.scaling) | {"rope_theta": rotary.theta}
            for kind, rotary in ((FULL, config.rotary), (WINDOWED, local))
        },
    }
    if (mixture := config.experts) is not None:
        raw |= {
            "enable_moe_block": True,
            "num_experts": mixture.count,
            "top_k_experts": mixture.chosen,
            "moe_intermediate_size": mixture.inner,
        }
    del raw["rope_theta"]
    raw.pop("rope_scaling", None)
    return raw


def _render_unified(config: ModelConfig) -> dict[str, Any]:
    raw = _render(config) | {
        "architectures": ["Gemma4UnifiedForCausalLM"],
        "model_type": "gemma4_unified_text",
    }
    del raw["hidden_size_per_layer_input"], raw["vocab_size_per_layer_input"]
    return raw


def _surplus(config: ModelConfig, name: str) -> bool:
    """Tell tensors that no layer reads: keys where a layer has another's, and a tied head."""
    names = (
        _NAMES[role].format(i=i)
        for i, layer in enumerate(config.layers)
        if layer.keys_of is not None
        for role in _OF_KEYS
    )
    return name in names or GEMMA3_TEXT.surplus(config, name)


def _unsaid(fields: Fields) -> dict[str, Any]:
    """Return what a GGUF file says in other words, or leaves to its readers.

    src/models/gemma4.cpp of llama.cpp: where a layer has no values, they are its keys.
    """
    for name, width in (("value_dim", "head_dim"), ("turned", "head_dim")):
        fields.fixed(name, fields.size(width))
        fields.fixed(f"global_{name}", fields.size(f"global_{width}"))
    count = layer_count(fields)
    windowed = fields.raw.get("windowed_layers")
    if not isinstance(windowed, np.ndarray) or windowed.dtype != np.bool_ or len(windowed) != count:
        raise fields.fault("windowed_layers", f"a list of {count} of true or false")
    shared = fields.size("num_kv_shared_layers", 0, minimum=0)
    heads = _by_layer(fields, "num_key_value_heads", count)
    inner = _by_layer(fields, "intermediate_size", count)
    local = [x for x, there in zip(heads, windowed, strict=True) if there]
    usual = local[0] if local else heads[0]
    own = inner[: max(count - shared, 1)]
    if any(x != usual for x in local) or len(set(own)) > 1 or len(set(inner[len(own) :])) > 1:
        raise fields.fault(
            "num_key_value_heads",
            "one number for all layers with a window, and widths of MLPs alike",
        )
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "vocab_size_per_layer_input": fields.size("vocab_size"),
        "enable_moe_block": fields.has("num_experts"),
        "layer_types": [WINDOWED if x else FULL for x in windowed.tolist()],
        "num_key_value_heads": usual,
        "intermediate_size": own[0],
        "use_double_wide_mlp": inner[-1] == 2 * own[0],
        "attention_k_eq_v": fields.raw.get("keys_are_values", False),
        "per_layer_config": {
            str(i): {"head_dim": fields.size("global_head_dim"), "num_key_value_heads": heads[i]}
            for i in range(count)
            if not windowed[i]
        },
        "rope_parameters": {
            FULL: {"rope_theta": fields.number("rope_theta")},
            WINDOWED: {"rope_theta": fields.number("rope_local_base_freq", _LOCAL_THETA)},
        },
    }


def _by_layer(fields: Fields, name: str, count: int) -> list[int]:
    """Read a size, or a list of one for each layer."""
    said = fields.raw.get(name)
    if not isinstance(said, np.ndarray):
        return [fields.size(name)] * count
    sizes: list[int] = said.tolist()
    if len(sizes) != count or not all(type(x) is int and x > 0 for x in sizes):
        raise fields.fault(name, f"a size, or a list of {count}, one a layer")
    return sizes


_GGUF_NAMES = {
    Role.LAYER_SCALE: "blk.{i}.layer_output_scale.weight",
    Role.PER_LAYER_EMBEDDING: "per_layer_token_embd.weight",
    Role.PER_LAYER_PROJECTION: "per_layer_model_proj.weight",
    Role.PER_LAYER_NORM: "per_layer_proj_norm.weight",
    Role.PER_LAYER_GATE: "blk.{i}.inp_gate.weight",
    Role.PER_LAYER_OUT: "blk.{i}.proj.weight",
    Role.POST_THIRD_NORM: "blk.{i}.post_norm.weight",
}


def _gguf_names(config: ModelConfig) -> Mapping[Role, str]:
    return _GGUF_NAMES if config.experts is None else _GGUF_NAMES | _MIXED_GGUF_NAMES


_GGUF = GgufSpelling(
    architecture="gemma4",
    style="half",
    keys={
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": "windowed_layers",
        "attention.shared_kv_layers": "num_kv_shared_layers",
        "attention.key_length": "global_head_dim",
        "attention.value_length": "global_value_dim",
        "attention.key_length_swa": "head_dim",
        "attention.value_length_swa": "value_dim",
        "rope.dimension_count": "global_turned",
        "rope.dimension_count_swa": "turned",
        "rope.freq_base_swa": "rope_local_base_freq",
        "embedding_length_per_layer_input": "hidden_size_per_layer_input",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    optional={
        "expert_count": "num_experts",
        "expert_used_count": "top_k_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
    },
    given=_unsaid,
    names=_gguf_names,
    experts=None,
)
GEMMA4_TEXT = replace(
    GEMMA3_TEXT,
    name="gemma4_text",
    model_types=("gemma4_text",),
    fields=DENSE
    | {
        "layers": _layers,
        "rotary": lambda f: _rotary(f, FULL, _THETA),
        "local_rotary": lambda f: _rotary(f, WINDOWED, _LOCAL_THETA),
        "norm_after": lambda f: True,
        "qk_norm": lambda f: QkNorm.HEAD,
        "value_norm": lambda f: True,
        "query_scale": lambda f: 1.0,
        "layer_scales": lambda f: True,
        "experts": _experts,
        "activation": lambda f: "gelu_tanh",
        "embedding_scale": read_embedding_scale,
        "logit_cap": lambda f: (
            f.number("final_logit_softcapping") if f.has("final_logit_softcapping") else None
        ),
    },
    fixed={
        "hidden_activation": ("gelu_pytorch_tanh", ""),
        "attention_bias": (False, "executors have no such biases in this family"),
        "use_bidirectional_attention": ("vision", ""),  # "all": text would see what comes behind
    },
    names=_names,
    halves=True,
    surplus=_surplus,
    render=_render,
    view=_with(_DEFAULTS),
    gguf=_GGUF,
)
GEMMA4 = with_tower(
    GEMMA4_TEXT,
    "gemma4",
    "Gemma4ForConditionalGeneration",
    ("model.", "model.language_model."),
    ("model.vision_tower.", "model.audio_tower.", "model.embed_vision.", "model.embed_audio."),
)
# A GGUF file calls it what it calls the others, and it is read as one of them.
GEMMA4_UNIFIED_TEXT = replace(
    GEMMA4_TEXT,
    name="gemma4_unified_text",
    model_types=("gemma4_unified_text",),
    fixed={
        **GEMMA4_TEXT.fixed,
        "hidden_size_per_layer_input": (0, "this family has no per-layer embeddings"),
        "enable_moe_block": (False, "this family has no mixtures"),
    },
    render=_render_unified,
    view=_with(_UNIFIED_DEFAULTS),
    gguf=None,
)
GEMMA4_UNIFIED = with_tower(
    GEMMA4_UNIFIED_TEXT,
    "gemma4_unified",
    "Gemma4UnifiedForConditionalGeneration",
    ("model.", "model.language_model."),
    ("model.vision_embedder.", "model.embed_vision.", "model.embed_audio."),
)
