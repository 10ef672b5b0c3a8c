"""Bamba: Mamba-2 in most layers, attention in those of ``attn_layer_indices``, an MLP in each.

Of a head's numbers the first half turns, whatever the file says, as Transformers has it. GGUF files
of it have Granite 4's architecture, and are refused: there a head turns whole, or not at all.
"""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model._reduce import NOW
from monolane.model._rotary import Rotary
from monolane.model.families._family import layer_count, render_common
from monolane.model.families._mamba import mamba_names, read_mamba, write_mamba
from monolane.model.families._rotary import read_rotary
from monolane.model.families.llama import BIASES, DENSE, LLAMA, NAMES
from monolane.ops import Role
from monolane.ops.mamba.spec import Mamba

_NORM_EPS, _PART, _KV_HEADS = 1e-5, 0.5, 8
_LAYER = "model.layers.{i}."
_MLP = _LAYER + "feed_forward."
_NAMES = {
    **NAMES,
    **mamba_names(_LAYER + "mamba."),
    Role.MLP_NORM: _LAYER + "pre_ff_layernorm.weight",
    Role.GATE: _MLP + "gate_proj.weight",
    Role.UP: _MLP + "up_proj.weight",
    Role.DOWN: _MLP + "down_proj.weight",
    Role.FINAL_NORM: "model.final_layernorm.weight",
}


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    count = layer_count(fields)
    attending = fields.layer_ids("attn_layer_indices", count) or set()
    mamba = None if len(attending) == count else read_mamba(fields)
    return tuple(
        LayerConfig(NOW, NOW, modules=() if i in attending or mamba is None else (mamba, "mlp"))
        for i in range(count)
    )


def _render(config: ModelConfig) -> dict[str, Any]:
    mambas = [config.find(i, Mamba) for i in range(config.num_layers)]
    mamba = next((x for x in mambas if x is not None), None)
    said = {} if mamba is None else write_mamba(mamba, config.hidden_size)
    return (
        render_common(config, "BambaForCausalLM", "bamba")
        | said
        | {
            "hidden_act": "silu",
            "head_dim": config.head_dim,
            "rms_norm_eps": config.norm_eps,
            "attention_bias": config.out_bias,
            "attn_layer_indices": [i for i, x in enumerate(mambas) if x is None],
            "partial_rotary_factor": config.rotary.part,
        }
    )


def _rotary(fields: Fields) -> Rotary:
    return replace(read_rotary(fields, "half", part=_PART), part=_PART)


BAMBA = replace(
    LLAMA,
    name="bamba",
    model_types=("bamba",),
    fields=DENSE
    | BIASES
    | {
        "layers": _layers,
        "rotary": _rotary,
        "norm_eps": lambda f: f.number("rms_norm_eps", _NORM_EPS),
        "num_kv_heads": lambda f: f.size("num_key_value_heads", _KV_HEADS),
    },
    names=lambda config: _NAMES,
    render=_render,
    gguf=None,
)
