"""Falcon-H1: in each layer attention beside Mamba-2, which read the same, and an MLP behind both.

Its multipliers, each 1 where it is not there, in the order in which a token meets them:

    embedding_multiplier          of the embedded token
    attention_in_multiplier       of what Q, K and V read; key_multiplier: of keys
    attention_out_multiplier      of what attention says
    ssm_in_multiplier             of what Mamba-2 reads; ssm_multipliers: of z, u, b, c and t
    ssm_out_multiplier            of what it says
    mlp_multipliers               of the gate, before its activation, and of what the MLP says
    lm_head_multiplier            of logits

GGUF files have them in the weights. A head that is tied there reads rows with the embedding's
multiplier, as in llama.cpp: its logits are the model's times a number.
"""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig, ModuleConfig
from monolane.model._reduce import NOW
from monolane.model.families._family import layer_count, render_common
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._mamba import GGUF_KEYS, mamba_names, read_mamba, write_mamba
from monolane.model.families.llama import DENSE, LLAMA, NAMES
from monolane.ops import Mlp, Role
from monolane.ops.mamba.spec import Mamba

_INNER, _KV_HEADS, _NORM_EPS = 1024, 8, 1e-5
_LAYER = "model.layers.{i}."
_MLP = _LAYER + "feed_forward."
_NAMES = {
    **NAMES,
    **mamba_names(_LAYER + "mamba."),
    Role.THIRD_NORM: _LAYER + "pre_ff_layernorm.weight",
    Role.GATE: _MLP + "gate_proj.weight",
    Role.UP: _MLP + "up_proj.weight",
    Role.DOWN: _MLP + "down_proj.weight",
    Role.FINAL_NORM: "model.final_layernorm.weight",
}


def _view(fields: Fields) -> Fields:
    """Return the fields with those that Transformers has another default for than others do."""
    there = {"mamba_d_ssm": _INNER, "num_key_value_heads": _KV_HEADS} | dict(fields.raw)
    if fields.flag("mamba_rms_norm", False) and fields.flag("mamba_norm_before_gate", True):
        raise fields.fault("mamba_norm_before_gate", "false: executors norm what is gated")
    return Fields(there, fields.source, fields.spelled)


def _multipliers(fields: Fields, name: str, count: int) -> tuple[float, ...]:
    """Read a list of multipliers."""
    said = fields.raw.get(name)
    if said is None:
        return (1.0,) * count
    if not isinstance(said, list) or len(said) != count:
        raise fields.fault(name, f"a list of {count} numbers above zero")
    return tuple(Fields({name: x}, fields.source, fields.spelled).number(name) for x in said)


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    gate, update, write, read, step = _multipliers(fields, "ssm_multipliers", 5)
    mamba = read_mamba(
        fields,
        normed=fields.flag("mamba_rms_norm", False),
        scale=fields.number("ssm_in_multiplier", 1.0),
        gate_scale=gate,
        input_scale=update,
        write_scale=write,
        read_scale=read,
        step_scale=step,
    )
    gate, down = _multipliers(fields, "mlp_multipliers", 2)
    attention = ModuleConfig(
        "attention",
        scale=fields.number("attention_out_multiplier", 1.0),
        read_scale=fields.number("attention_in_multiplier", 1.0),
    )
    beside = ModuleConfig(
        mamba, scale=fields.number("ssm_out_multiplier", 1.0), beside=True, same_norm=True
    )
    mlp = ModuleConfig(Mlp(inner=fields.size("intermediate_size"), gate_scale=gate), scale=down)
    layer = LayerConfig(NOW, NOW, modules=(attention, beside, mlp))
    return (layer,) * layer_count(fields)


def _render(config: ModelConfig) -> dict[str, Any]:
    attention, beside, mlp = config.layers[0].listed
    mamba = beside.operation
    assert isinstance(mamba, Mamba)
    assert isinstance(mlp.operation, Mlp)
    scales = mamba.gate_scale, mamba.input_scale, mamba.write_scale, mamba.read_scale
    return (
        render_common(config, "FalconH1ForCausalLM", "falcon_h1")
        | write_mamba(mamba, config.hidden_size)
        | {
            "hidden_act": "silu",
            "head_dim": config.head_dim,
            "rms_norm_eps": config.norm_eps,
            "mamba_d_ssm": mamba.columns,
            "mamba_rms_norm": mamba.normed,
            "mamba_norm_before_gate": False,
            "embedding_multiplier": config.embedding_scale,
            "attention_in_multiplier": attention.read_scale,
            "key_multiplier": config.key_scale,
            "attention_out_multiplier": attention.scale,
            "ssm_in_multiplier": mamba.scale,
            "ssm_multipliers": [*scales, mamba.step_scale],
            "ssm_out_multiplier": beside.scale,
            "mlp_multipliers": [mlp.operation.gate_scale, mlp.scale],
            "lm_head_multiplier": config.logit_scale,
        }
    )


FALCON_H1 = replace(
    LLAMA,
    name="falcon_h1",
    model_types=("falcon_h1",),
    fields=DENSE
    | {
        "layers": _layers,
        "norm_eps": lambda f: f.number("rms_norm_eps", _NORM_EPS),
        "embedding_scale": lambda f: f.number("embedding_multiplier", 1.0),
        "key_scale": lambda f: f.number("key_multiplier", 1.0),
        "logit_scale": lambda f: f.number("lm_head_multiplier", 1.0),
    },
    fixed={
        **LLAMA.fixed,
        "attention_bias": (False, "executors have no such biases in this family"),
        "projectors_bias": (False, "executors have no biases of these products"),
    },
    names=lambda config: _NAMES,
    render=_render,
    view=_view,
    gguf=GgufSpelling(
        architecture="falcon-h1",
        style="half",
        keys=GGUF_KEYS,
        given=lambda f: {"mamba_norm_before_gate": False},
        names=lambda config: {Role.THIRD_NORM: "blk.{i}.ffn_norm"},
    ),
)
