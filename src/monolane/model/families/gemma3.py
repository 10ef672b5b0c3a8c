"""Gemma 3, its text: norms before and behind each module, of scales 1 + w; local and global layers.

    gemma3_text   the text model by itself (1B, 270M)
    gemma3        with a vision tower (4B and up), which is not read: the text's fields are in
                  text_config, the names of its tensors begin with "language_model."

Where a field is not there it means what Transformers 5 takes for it; files of the larger models
name little more than their sizes.
"""

import math
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from monolane.errors import ConfigError
from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model.families._family import layer_count, render_common
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._nested import with_tower
from monolane.model.families._rotary import FULL, WINDOWED, read_layer_rotary, write_layer_rotary
from monolane.model.families.llama import BIASES, DENSE, LLAMA, NAMES, read_layers
from monolane.ops import QkNorm, Role

_DEFAULTS: dict[str, Any] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "tie_word_embeddings": True,
}
GEMMA3_NAMES = NAMES | {
    Role.Q_NORM: "model.layers.{i}.self_attn.q_norm.weight",
    Role.K_NORM: "model.layers.{i}.self_attn.k_norm.weight",
    Role.POST_ATTENTION_NORM: "model.layers.{i}.post_attention_layernorm.weight",
    Role.MLP_NORM: "model.layers.{i}.pre_feedforward_layernorm.weight",
    Role.POST_MLP_NORM: "model.layers.{i}.post_feedforward_layernorm.weight",
}
_LAYERS_27B = 62  # the one model whose scores are scaled by another width than a head's
_SQUARE_ROOTS = {
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "float32": np.float32,
}


def _view(fields: Fields) -> Fields:
    there = {name: value for name, value in fields.raw.items() if value is not None}
    return Fields(_DEFAULTS | there, fields.source, fields.spelled)


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    pattern = fields.size("sliding_window_pattern")
    layers = read_layers(fields, fields.size("sliding_window"), lambda i: (i + 1) % pattern != 0)
    return tuple(
        layer if layer.window is None else replace(layer, rotary="local") for layer in layers
    )


def _query_scale(fields: Fields) -> float | None:
    width = fields.number("query_pre_attn_scalar")
    return None if width == fields.size("head_dim") else width**-0.5


def read_embedding_scale(fields: Fields) -> float:
    """Return the square root of the width as Transformers has it: in the checkpoint's dtype."""
    dtype = DENSE["dtype"](fields)
    return float(_SQUARE_ROOTS[dtype](math.sqrt(fields.size("hidden_size"))))


def _render(config: ModelConfig) -> dict[str, Any]:
    windows = {layer.window for layer in config.layers if layer.window is not None}
    raw = render_common(config, "Gemma3ForCausalLM", "gemma3_text") | {
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        "query_pre_attn_scalar": query_width(config),
        "layer_types": [FULL if layer.window is None else WINDOWED for layer in config.layers],
    }
    if config.out_bias:
        raw["attention_bias"] = True
    if windows:
        raw["sliding_window"] = max(windows)
    if (local := config.local_rotary) is None:
        raise ConfigError("local_rotary: expected one, as Gemma 3 has, got None")
    if local.scaling is None:
        return raw | {"rope_local_base_freq": local.theta}
    del raw["rope_theta"]
    raw.pop("rope_scaling", None)
    return raw | write_layer_rotary(config.rotary, local)


def query_width(config: ModelConfig) -> float:
    """Return the number whose root divides the scores, a whole one where one says the same."""
    if config.query_scale is None:
        return config.head_dim
    width = config.query_scale**-2
    whole = max(round(width), 1)
    return whole if whole**-0.5 == config.query_scale else width


def _unsaid(fields: Fields) -> dict[str, Any]:
    """Return what a GGUF file leaves to its readers: src/models/gemma3.cpp of llama.cpp."""
    given: dict[str, Any] = {"hidden_activation": "gelu_pytorch_tanh"}
    if "sliding_window" not in fields.raw:
        given["sliding_window_pattern"] = 1  # no layer has a window
    if layer_count(fields) == _LAYERS_27B:
        heads, hidden = fields.size("num_attention_heads"), fields.size("hidden_size")
        return given | {"query_pre_attn_scalar": max(1, hidden // heads)}
    return given | {"query_pre_attn_scalar": fields.raw.get("head_dim")}


GEMMA3_TEXT = replace(
    LLAMA,
    name="gemma3_text",
    model_types=("gemma3_text",),
    fields=DENSE
    | BIASES
    | {
        "layers": _layers,
        "rotary": lambda f: read_layer_rotary(f, FULL, "half", f.number("rope_theta")),
        "local_rotary": lambda f: read_layer_rotary(
            f, WINDOWED, "half", f.number("rope_local_base_freq")
        ),
        "norm_offset": lambda f: 1.0,
        "norm_after": lambda f: True,
        "qk_norm": lambda f: QkNorm.HEAD,
        "query_scale": _query_scale,
        "activation": lambda f: "gelu_tanh",
        "embedding_scale": read_embedding_scale,
    },
    fixed={
        "hidden_activation": ("gelu_pytorch_tanh", ""),
        "attn_logit_softcapping": (None, "no Gemma 3 caps scores"),
        "final_logit_softcapping": (None, "no Gemma 3 caps logits"),
        "use_bidirectional_attention": (False, "a decoder sees what came before only"),
    },
    names=lambda config: GEMMA3_NAMES,
    render=_render,
    view=_view,
    gguf=GgufSpelling(
        architecture="gemma3",
        style="half",
        keys={
            "attention.sliding_window": "sliding_window",
            "attention.sliding_window_pattern": "sliding_window_pattern",
            "rope.freq_base_swa": "rope_local_base_freq",
        },
        given=_unsaid,
        folded={"norm_offset": 0.0},  # the converter adds the 1 to the scales
    ),
)
GEMMA3 = with_tower(
    GEMMA3_TEXT,
    "gemma3",
    "Gemma3ForConditionalGeneration",
    ("", "language_model."),
    ("vision_tower.", "multi_modal_projector."),
)
