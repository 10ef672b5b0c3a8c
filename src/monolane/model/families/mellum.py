"""Mellum 2: a Qwen3 with mixtures in the layers that ``mlp_layer_types`` calls sparse, or in all.

Layers that ``layer_types`` gives a window have a rotary of their own; without that field none has.
Where a field is not there it means what Transformers takes for it. Tensors "mtp.", which predict
tokens further ahead, are not read.
"""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model._rotary import Rotary
from monolane.model.families._family import with_defaults
from monolane.model.families._rotary import (
    FULL,
    WINDOWED,
    read_layer_rotary,
    write_layer_rotary,
)
from monolane.model.families._sparse import DENSE, SPARSE, read_sparse
from monolane.model.families.llama import read_layers, surplus
from monolane.model.families.olmoe import read_experts, render_experts_as
from monolane.model.families.qwen3 import QWEN3
from monolane.model.families.qwen3_moe import ROUTED
from monolane.ops import Experts

_FULL_THETA, _WINDOWED_THETA = 5e5, 1e4
_DEFAULTS: dict[str, Any] = {
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "sliding_window": 1024,
    "moe_intermediate_size": 896,
    "norm_topk_prob": True,
}


def _windows(fields: Fields) -> tuple[LayerConfig, ...]:
    return read_layers(fields, fields.size("sliding_window"), lambda i: False)


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    both = zip(_windows(fields), read_sparse(fields, dense=0), strict=True)
    return tuple(
        replace(layer, experts=mixed, rotary="main" if layer.window is None else "local")
        for layer, mixed in both
    )


def _local_rotary(fields: Fields) -> Rotary | None:
    if all(layer.window is None for layer in _windows(fields)):
        return None
    return read_layer_rotary(fields, WINDOWED, "half", _WINDOWED_THETA)


def _experts(fields: Fields) -> Experts | None:
    if not any(read_sparse(fields, dense=0)):
        return None
    return replace(read_experts(fields), inner=fields.size("moe_intermediate_size"))


def _render(config: ModelConfig) -> dict[str, Any]:
    said = (QWEN3.render if config.experts is None else render_experts_as("Mellum"))(config)
    for name in ("rope_theta", "rope_scaling", "use_sliding_window"):
        said.pop(name, None)
    inner = {} if config.experts is None else {"moe_intermediate_size": config.experts.inner}
    return {
        **said,
        **inner,
        **write_layer_rotary(config.rotary, config.local_rotary),
        "architectures": ["MellumForCausalLM"],
        "model_type": "mellum",
        "mlp_layer_types": [SPARSE if x.experts else DENSE for x in config.layers],
    }


MELLUM = replace(
    QWEN3,
    name="mellum",
    model_types=("mellum",),
    fields={
        **QWEN3.fields,
        "layers": _layers,
        "experts": _experts,
        "rotary": lambda f: read_layer_rotary(f, FULL, "half", _FULL_THETA),
        "local_rotary": _local_rotary,
    },
    fixed={
        "hidden_act": ("silu", ""),
        "rope_theta": (None, "rope_parameters says it for each kind of layers"),
        "rope_scaling": (None, "rope_parameters says it for each kind of layers"),
        "first_k_dense_replace": (0, "mlp_layer_types says which layers are mixtures"),
    },
    names=lambda config: {**QWEN3.names(config), **ROUTED},
    surplus=lambda config, name: surplus(config, name) or name.startswith("mtp."),
    render=_render,
    view=with_defaults(_DEFAULTS),
    gguf=None,
)
