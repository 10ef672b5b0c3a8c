"""Gemma 3n, its text: four streams (AltUp), a learned residual beside attention, per-layer inputs.

    gemma3n_text   the text model by itself
    gemma3n        with towers for pictures and sound, which are not read: the text's fields are in
                   text_config, the names of its tensors begin with "model.language_model."

Attention is Gemma 4's, with heads of one width. The first layers' MLPs let few numbers through, as
``activation_sparsity_pattern`` says. Where a field is not there it means what Transformers takes
for it.
"""

from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np

from monolane.errors import ConfigError
from monolane.model._altup import IN, OUT, AltUp
from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig, ModuleConfig, ModuleName
from monolane.model._rotary import Rotary
from monolane.model.families._family import layer_count, render_common
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._nested import with_tower
from monolane.model.families._rotary import FULL, WINDOWED, read_layer_rotary, write_stretch
from monolane.model.families.gemma3 import read_embedding_scale
from monolane.model.families.gemma4 import GEMMA4_TEXT, share_keys
from monolane.model.families.llama import DENSE, read_layers
from monolane.ops import Operation, QkNorm, Role
from monolane.ops.laurel.spec import Laurel
from monolane.ops.per_layer.spec import PerLayer
from monolane.ops.sparse_mlp.spec import SparseMlp

_DEFAULTS: dict[str, Any] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "intermediate_size": 16384,
    "vocab_size": 262400,
    "vocab_size_per_layer_input": 262144,
    "hidden_size_per_layer_input": 256,
    "max_position_embeddings": 32768,
    "sliding_window": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "final_logit_softcapping": 30.0,
    "altup_num_inputs": 4,
    "altup_correct_scale": True,
    "num_kv_shared_layers": 15,
    "laurel_rank": 64,
}
_PATTERN = 5  # every so many layers, counted from 1, one is global
_THETA, _LOCAL_THETA = 1e6, 1e4
_SPARSE, _DEEP, _SPARSITY = 10, 10, 0.95  # layers, of models of more, and how sparse
_OWN_KEYS = 20  # layers that have keys of their own, of a GGUF file that does not say how many
_LAYER = "model.layers.{i}."


def _names(config: ModelConfig) -> Mapping[Role, str]:
    altup, laurel = _LAYER + "altup.", _LAYER + "laurel."
    outer = {
        **{role: f"model.altup_projections.{i}.weight" for i, role in enumerate(IN)},
        **{role: f"model.altup_unembed_projections.{i}.weight" for i, role in enumerate(OUT)},
    }
    return {
        **GEMMA4_TEXT.names(config),
        **outer,
        Role.THIRD_NORM: _LAYER + "pre_feedforward_layernorm.weight",
        Role.POST_THIRD_NORM: _LAYER + "post_feedforward_layernorm.weight",
        Role.POST_FOURTH_NORM: _LAYER + "post_per_layer_input_norm.weight",
        Role.ALTUP_NORM: altup + "router_norm.weight",
        Role.ALTUP_ROUTER: altup + "modality_router.weight",
        Role.ALTUP_PREDICT: altup + "prediction_coefs.weight",
        Role.ALTUP_CORRECT: altup + "correction_coefs.weight",
        Role.ALTUP_SCALE: altup + "correct_output_scale",
        Role.LAUREL_LEFT: laurel + "linear_left.weight",
        Role.LAUREL_RIGHT: laurel + "linear_right.weight",
        Role.LAUREL_NORM: laurel + "post_laurel_norm.weight",
    }


def _view(fields: Fields) -> Fields:
    there = {name: value for name, value in fields.raw.items() if value is not None}
    return Fields(_DEFAULTS | there, fields.source, fields.spelled)


def _widths(fields: Fields) -> list[int]:
    """Return the width of each layer's MLP, of which files say one, or a list."""
    count, said = layer_count(fields), fields.raw.get("intermediate_size")
    if not isinstance(said, list):
        return [fields.size("intermediate_size")] * count
    if len(said) != count:
        raise fields.fault("intermediate_size", f"a size, or a list of {count}, one a layer")
    each = (Fields({"intermediate_size": x}, fields.source) for x in said)
    return [x.size("intermediate_size") for x in each]


def _sparsities(fields: Fields) -> list[float]:
    count, said = layer_count(fields), fields.raw.get("activation_sparsity_pattern")
    if said is None:
        sparse = _SPARSE if count > _DEEP else 0
        return [_SPARSITY] * sparse + [0.0] * (count - sparse)
    known = isinstance(said, list) and all(type(x) in (int, float) and 0 <= x < 1 for x in said)
    if not known or len(said) != count:
        expected = f"a list of {count} numbers from 0 to less than 1, one a layer"
        raise fields.fault("activation_sparsity_pattern", expected)
    return [float(x) for x in said]


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    window = fields.size("sliding_window")
    plain = read_layers(fields, window, lambda i: (i + 1) % _PATTERN != 0)
    widths, sparsities = _widths(fields), _sparsities(fields)
    laurel = Laurel(rank=fields.size("laurel_rank"))
    per_layer = PerLayer(
        inner=fields.size("hidden_size_per_layer_input"),
        layers=len(plain),
        rows=fields.size("vocab_size_per_layer_input"),
        activation="gelu_tanh",
    )

    def layer(own: LayerConfig, inner: int, sparsity: float) -> LayerConfig:
        mlp: ModuleName | Operation = "mlp"
        if sparsity:
            mlp = SparseMlp(inner=inner, sparsity=sparsity, activation="gelu_tanh")
        modules: tuple[ModuleName | Operation | ModuleConfig, ...] = (
            "attention",
            ModuleConfig(laurel, norm_after=False, beside=True, same_norm=True),
            mlp,
            ModuleConfig(per_layer, norm_before=False),
        )
        return replace(
            own,
            rotary="main" if own.window is None else "local",
            intermediate_size=None if inner == widths[0] else inner,
            modules=modules,
        )

    shared = share_keys(fields, plain)
    return tuple(map(layer, shared, widths, sparsities))


def _rotary(fields: Fields, kind: str, name: str, theta: float) -> Rotary:
    return read_layer_rotary(fields, kind, "half", fields.number(name, theta))


def _altup(fields: Fields) -> AltUp:
    return AltUp(fields.size("altup_num_inputs"), fields.flag("altup_correct_scale", True))


def _surplus(config: ModelConfig, name: str) -> bool:
    """Tell also scales that are not applied."""
    unscaled = config.altup is not None and not config.altup.scaled
    scale = unscaled and name.endswith(".altup.correct_output_scale")
    return scale or GEMMA4_TEXT.surplus(config, name)


def _render(config: ModelConfig) -> dict[str, Any]:
    local, altup = config.local_rotary, config.altup
    if local is None or altup is None:
        raise ConfigError("local_rotary, altup: expected both, as Gemma 3n has, got None")
    layers = config.layers
    laurel, per_layer = config.operation(0, Laurel), config.operation(0, PerLayer)
    sparse = [config.find(i, SparseMlp) for i in range(config.num_layers)]
    usual = config.intermediate_size
    raw = render_common(config, "Gemma3nForCausalLM", "gemma3n_text") | {
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        "intermediate_size": [x.intermediate_size or usual for x in layers],
        "activation_sparsity_pattern": [0.0 if x is None else x.sparsity for x in sparse],
        "layer_types": [FULL if layer.window is None else WINDOWED for layer in layers],
        "sliding_window": max((x.window for x in layers if x.window is not None), default=512),
        "num_kv_shared_layers": sum(layer.keys_of is not None for layer in layers),
        "laurel_rank": laurel.rank,
        "hidden_size_per_layer_input": per_layer.inner,
        "vocab_size_per_layer_input": per_layer.rows,
        "final_logit_softcapping": config.logit_cap,
        "altup_num_inputs": altup.streams,
        "altup_correct_scale": altup.scaled,
        "rope_parameters": {
            kind: write_stretch(rotary.scaling) | {"rope_theta": rotary.theta}
            for kind, rotary in ((FULL, config.rotary), (WINDOWED, local))
        },
    }
    del raw["rope_theta"]
    raw.pop("rope_scaling", None)
    return raw


def _unsaid(fields: Fields) -> dict[str, Any]:
    """Return what a GGUF file says in other words, or leaves to its readers.

    src/models/gemma3n.cpp of llama.cpp: the first 20 layers have keys of their own. The table of
    per-layer embeddings has a row for each token, of zeros behind those that the model has.
    """
    count, given = layer_count(fields), {}
    widths = fields.raw.get("intermediate_size")
    if isinstance(widths, np.ndarray):
        given["intermediate_size"] = widths.tolist()
    windowed = fields.raw.get("windowed_layers")
    if windowed is not None:
        if not isinstance(windowed, np.ndarray) or (windowed.dtype, len(windowed)) != (bool, count):
            raise fields.fault("windowed_layers", f"a list of {count} of true or false")
        given["layer_types"] = [WINDOWED if x else FULL for x in windowed.tolist()]
    scales = fields.raw.get("sparsity_scales")
    if scales is not None:
        numbers = isinstance(scales, np.ndarray) and scales.dtype.kind == "f"
        if not numbers or len(scales) != count or not (scales < np.inf).all():
            raise fields.fault("sparsity_scales", f"a list of {count} numbers, one a layer")
        given["activation_sparsity_pattern"] = [_sparsity(x) for x in scales.tolist()]
    return given | {
        "hidden_activation": "gelu_pytorch_tanh",
        "vocab_size_per_layer_input": fields.size("vocab_size"),
        "num_kv_shared_layers": fields.size(
            "num_kv_shared_layers", max(count - _OWN_KEYS, 0), minimum=0
        ),
    }


def _sparsity(deviations: float) -> float:
    """Return the part of a normal distribution below so many deviations, in float32's digits.

    Files have the deviations in float32, of a number of few digits.
    """
    return float(str(np.float32(NormalDist().cdf(deviations))))


def _gguf_names(config: ModelConfig) -> Mapping[Role, str]:
    assert GEMMA4_TEXT.gguf is not None
    block = "blk.{i}."
    return {
        **GEMMA4_TEXT.gguf.names(config),
        Role.ALTUP_IN: "altup_proj.weight",
        Role.ALTUP_OUT: "altup_unembd_proj.weight",
        Role.THIRD_NORM: block + "ffn_norm.weight",
        Role.POST_THIRD_NORM: block + "post_ffw_norm.weight",
        Role.POST_FOURTH_NORM: block + "post_norm.weight",
        Role.ALTUP_NORM: block + "altup_router_norm.weight",
        Role.ALTUP_ROUTER: block + "altup_router.weight",
        Role.ALTUP_PREDICT: block + "altup_predict_coef.weight",
        Role.ALTUP_CORRECT: block + "altup_correct_coef.weight",
        Role.ALTUP_SCALE: block + "altup_correct_scale.weight",
    }


_GGUF = GgufSpelling(
    architecture="gemma3n",
    style="half",
    keys={
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": "windowed_layers",
        "attention.shared_kv_layers": "num_kv_shared_layers",
        "rope.freq_base_swa": "rope_local_base_freq",
        "embedding_length_per_layer_input": "hidden_size_per_layer_input",
        "final_logit_softcapping": "final_logit_softcapping",
        "altup.active_idx": "altup_active_idx",
        "altup.num_inputs": "altup_num_inputs",
        "activation_sparsity_scale": "sparsity_scales",
    },
    given=_unsaid,
    names=_gguf_names,
)
GEMMA3N_TEXT = replace(
    GEMMA4_TEXT,
    name="gemma3n_text",
    model_types=("gemma3n_text",),
    fields=DENSE
    | {
        "intermediate_size": lambda f: _widths(f)[0],
        "layers": _layers,
        "rotary": lambda f: _rotary(f, FULL, "rope_theta", _THETA),
        "local_rotary": lambda f: _rotary(f, WINDOWED, "rope_local_base_freq", _LOCAL_THETA),
        "norm_after": lambda f: True,
        "qk_norm": lambda f: QkNorm.HEAD,
        "value_norm": lambda f: True,
        "query_scale": lambda f: 1.0,
        "activation": lambda f: "gelu_tanh",
        "embedding_scale": read_embedding_scale,
        "logit_cap": lambda f: f.number("final_logit_softcapping"),
        "altup": _altup,
    },
    fixed={
        "hidden_activation": ("gelu_pytorch_tanh", ""),
        "attention_bias": (False, "executors have no such biases in this family"),
        "altup_active_idx": (0, "executors have layers work on the first stream"),
    },
    names=_names,
    halves=False,
    surplus=_surplus,
    render=_render,
    view=_view,
    gguf=_GGUF,
)
GEMMA3N = with_tower(
    GEMMA3N_TEXT,
    "gemma3n",
    "Gemma3nForConditionalGeneration",
    ("model.", "model.language_model."),
    ("model.vision_tower.", "model.audio_tower.", "model.embed_vision.", "model.embed_audio."),
)
