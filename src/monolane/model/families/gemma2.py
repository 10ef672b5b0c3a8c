"""Gemma 2: norms before and behind each module, of scales 1 + w; scores and logits are capped.

Every other layer has a window, from the first on. Where a field is not there it means what
Transformers takes for it; a cap that is null is none.
"""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model.families._family import layer_count
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._rotary import read_rotary
from monolane.model.families.gemma3 import GEMMA3_NAMES, GEMMA3_TEXT, query_width
from monolane.model.families.llama import read_layers, render_as
from monolane.ops import Role

_DEFAULTS: dict[str, Any] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
_WINDOW = 4096
_SCORES, _LOGITS = "attn_logit_softcapping", "final_logit_softcapping"
_CAPS = {_SCORES: 50.0, _LOGITS: 30.0}
_LAYERS_27B = 46  # the one model whose scores are scaled by another width than a head's
_NAMES: dict[Role, str] = {
    role: name for role, name in GEMMA3_NAMES.items() if role not in (Role.Q_NORM, Role.K_NORM)
}


def _view(fields: Fields) -> Fields:
    there = {name: x for name, x in fields.raw.items() if x is not None or name in _CAPS}
    return Fields({**_DEFAULTS, **_CAPS, **there}, fields.source, fields.spelled)


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    return read_layers(fields, fields.size("sliding_window", _WINDOW), lambda i: i % 2 == 0)


def _cap(fields: Fields, name: str) -> float | None:
    return fields.number(name) if fields.has(name) else None


def _render(config: ModelConfig) -> dict[str, Any]:
    said = render_as("Gemma2")(config) | {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": query_width(config),
        _SCORES: config.score_cap,
        _LOGITS: config.logit_cap,
    }
    del said["hidden_act"]
    if said["sliding_window"] is None:
        del said["sliding_window"]
    return said


def _unsaid(fields: Fields) -> dict[str, Any]:
    """Return what a GGUF file leaves to its readers: src/models/gemma2.cpp of llama.cpp."""
    caps = {name: fields.raw.get(name) for name in _CAPS}
    width = fields.raw.get("head_dim")
    if layer_count(fields) == _LAYERS_27B:
        width = max(1, fields.size("hidden_size") // fields.size("num_attention_heads"))
    activation = {"hidden_activation": "gelu_pytorch_tanh"}
    return {**caps, **activation, "query_pre_attn_scalar": width}


GEMMA2 = replace(
    GEMMA3_TEXT,
    name="gemma2",
    model_types=("gemma2",),
    fields={
        **{
            place: read
            for place, read in GEMMA3_TEXT.fields.items()
            if place not in ("local_rotary", "qk_norm")
        },
        "layers": _layers,
        "rotary": lambda f: read_rotary(f, "half"),
        "score_cap": lambda f: _cap(f, _SCORES),
        "logit_cap": lambda f: _cap(f, _LOGITS),
    },
    fixed={k: x for k, x in GEMMA3_TEXT.fixed.items() if k not in _CAPS},
    names=lambda config: _NAMES,
    render=_render,
    view=_view,
    gguf=GgufSpelling(
        architecture="gemma2",
        style="half",
        optional={
            "attention.sliding_window": "sliding_window",
            "attn_logit_softcapping": _SCORES,
            "final_logit_softcapping": _LOGITS,
        },
        given=_unsaid,
        folded={"norm_offset": 0.0},  # the converter adds the 1 to the scales
    ),
)
