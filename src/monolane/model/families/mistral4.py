"""Mistral 4: latent attention whose queries grow by position, and mixtures chosen by a softmax.

    mistral4   the text model by itself
    mistral3   with a vision tower, which is not read: text_config says that it is a Mistral 4

Layers, names and latents are DeepSeek-V3's. ``llama_4_scaling_beta`` of the stretch says how fast
queries grow: see ops/attention/temperature.py. Where a field is not there it means what
Transformers takes for it, also how fast queries grow in a GGUF file, which llama.cpp's converter
does not say.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model.families._nested import with_tower
from monolane.model.families._sparse import MERGED
from monolane.model.families.deepseek import DEEPSEEK_V3, read_mixture, render_as
from monolane.model.families.ministral3 import (
    CONTEXT,
    GROWTH,
    OUTSIDE,
    read_temperature,
    render_temperature,
)
from monolane.ops import Experts, Role

_PART = "partial_rotary_factor"
_DEFAULTS: dict[str, Any] = {
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 128,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 0,
}
_QUERY_RANK = 1024  # null: queries have no latent
_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 128.0,
    CONTEXT: 8192,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    GROWTH: 0.1,
}


def _view(fields: Fields) -> Fields:
    there = {name: value for name, value in fields.raw.items() if value is not None}
    rank = {"q_lora_rank": fields.raw.get("q_lora_rank", _QUERY_RANK)}
    found = Fields({**_DEFAULTS, **there, **rank}, fields.source, fields.spelled)
    stretch = found.nested("rope_parameters")
    if stretch is None:
        said = {} if found.has("rope_scaling") else {"rope_parameters": _YARN}
        return Fields({**found.raw, **said}, found.source, found.spelled)
    # What is turned is qk_rope_head_dim numbers of a head, and this says it again.
    turned = found.size("qk_rope_head_dim")
    part = turned / (turned + found.size("qk_nope_head_dim"))
    if abs(stretch.number(_PART, part) - part) > 1e-9:
        raise stretch.fault(_PART, f"{part}, the part of a head that qk_rope_head_dim says")
    inner = {name: value for name, value in stretch.raw.items() if name != _PART}
    return Fields({**found.raw, "rope_parameters": inner}, found.source, found.spelled)


def _experts(fields: Fields) -> Experts | None:
    return read_mixture(fields, normalised=fields.flag("norm_topk_prob", True))


def _names(config: ModelConfig) -> Mapping[Role, str]:
    names = DEEPSEEK_V3.names(config)
    return {role: name for role, name in names.items() if role is not Role.ROUTER_CORRECTION}


def _render(config: ModelConfig) -> dict[str, Any]:
    said = render_as("Mistral4", "mistral4")(config)
    said.pop("topk_method", None)
    latent = config.latent
    assert latent is not None
    stretch = render_temperature(config, said.pop("rope_scaling", None))
    return said | {
        "head_dim": latent.head,
        "rope_parameters": stretch | {"rope_theta": said.pop("rope_theta")},
    }


_LATENT_GGUF = DEEPSEEK_V3.gguf
assert _LATENT_GGUF is not None


def _gguf_given(fields: Fields) -> dict[str, Any]:
    """Return the stretch as a config.json says it, and how fast queries grow."""
    assert _LATENT_GGUF is not None
    fields.fixed("expert_gating_func", 1, "experts of this family are chosen by a softmax")
    given = dict(_LATENT_GGUF.given(fields))
    stretch = given.get("rope_scaling", fields.raw.get("rope_scaling"))
    if stretch is None:
        return given | {"rope_scaling": {"rope_type": "default"}}
    growth = fields.number("temperature_scale", _YARN[GROWTH])
    trained = Fields(stretch, fields.source, fields.spelled).size(CONTEXT)
    fields.fixed("temperature_length", trained, "queries grow behind each trained context")
    return given | {"rope_scaling": {**stretch, GROWTH: growth}}


MISTRAL4 = replace(
    DEEPSEEK_V3,
    name="mistral4",
    model_types=("mistral4",),
    fields={
        **DEEPSEEK_V3.fields,
        "experts": _experts,
        "attention_temperature": read_temperature,
    },
    fixed={
        "hidden_act": ("silu", ""),
        "attention_bias": (False, "executors have no biases in latent attention"),
        "mlp_bias": (False, "executors have no biases in the MLP"),
        "n_group": (1, "groups of experts that are chosen by a softmax's shares are not computed"),
        "topk_group": (1, ""),
    },
    names=_names,
    merged=MERGED,
    render=_render,
    view=_view,
    gguf=replace(
        _LATENT_GGUF,
        architecture="mistral4",
        optional={
            **_LATENT_GGUF.optional,
            "attention.temperature_scale": "temperature_scale",
            "attention.temperature_length": "temperature_length",
        },
        given=_gguf_given,
        gating=(),
    ),
    ahead=None,
)
MISTRAL3_MISTRAL4 = with_tower(MISTRAL4, **OUTSIDE, name="mistral3_mistral4", inside=("mistral4",))
