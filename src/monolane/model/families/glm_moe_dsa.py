"""GLM-5: as DeepSeek-V3.2, with layers that see what an earlier layer's index has chosen.

Which do is in ``indexer_types`` ("full" or "shared"), in ``index_topk_pattern`` ("FSSF..."), or in
``index_topk_freq`` and ``index_skip_topk_offset``; GGUF files say it by true and false. The index
turns neighbours, as attention does.
Where a field is not there it means what Transformers takes for it.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model.families._family import Reader, layer_count
from monolane.model.families.deepseek_v32 import (
    DEEPSEEK_V32,
    GGUF_INDEXED,
    indexed,
    read_gguf_indexed,
    read_index,
    render_indexed,
)

_OWN, _SHARED = "full", "shared"
_LETTERS = {"F": _OWN, "S": _SHARED}
_DEFAULTS: dict[str, Any] = {
    "kv_lora_rank": 512,
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "rms_norm_eps": 1e-5,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 2048,
}
_SHARING_CONTEXT = 1 << 20  # tokens, from which on llama.cpp takes a file for one of GLM-5.2
_LAYERS: Reader = DEEPSEEK_V32.fields["layers"]


def _kinds(fields: Fields) -> list[str]:
    """Return of each layer whether its index is its own or shared."""
    count = layer_count(fields)
    name = fields.first("indexer_types", "index_topk_pattern")
    said = fields.raw.get(name)
    if said is None:
        every = fields.size("index_topk_freq", 1)
        first = fields.size("index_skip_topk_offset", 2, minimum=0)
        return [_SHARED if max(i - first + 1, 0) % every else _OWN for i in range(count)]
    if isinstance(said, str) and name == "index_topk_pattern":
        said = [_LETTERS.get(letter) for letter in said]
    known = isinstance(said, list) and all(kind in (_OWN, _SHARED) for kind in said)
    if not known or len(said) != count or said[0] != _OWN:
        expected = f"{_OWN!r} or {_SHARED!r} of each of {count} layers, the first {_OWN!r}"
        raise fields.fault(name, expected)
    return list(said)


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    layers: list[LayerConfig] = []
    last = 0
    for i, (layer, kind) in enumerate(zip(_LAYERS(fields), _kinds(fields), strict=True)):
        last = i if kind == _OWN else last
        layers.append(layer if kind == _OWN else replace(layer, index_of=last))
    return tuple(layers)


def _render(config: ModelConfig) -> dict[str, Any]:
    kinds = [_OWN if layer.index_of is None else _SHARED for layer in config.layers]
    return render_indexed("GlmMoeDsa", "glm_moe_dsa")(config) | {"indexer_types": kinds}


def _gguf_given(fields: Fields) -> dict[str, Any]:
    """Return what a GGUF file says in other words: which layers have an index of their own.

    Without the list all have, or, of a context as GLM-5.2's, those that have in that model.
    """
    given = read_gguf_indexed(fields)
    count, listed = given["num_hidden_layers"], fields.raw.get("indexer_types")
    if listed is None:
        sharing = fields.size("max_position_embeddings") >= _SHARING_CONTEXT
        own = [not sharing or i < 2 or i % 4 == 2 for i in range(count)]
    elif isinstance(listed, np.ndarray) and listed.dtype == np.bool_ and len(listed) == count:
        own = listed.tolist()
    else:
        raise fields.fault("indexer_types", f"a list of {count} of true or false, one a layer")
    return given | {"indexer_types": [_OWN if x else _SHARED for x in own]}


GLM_MOE_DSA = replace(
    DEEPSEEK_V32,
    name="glm_moe_dsa",
    model_types=("glm_moe_dsa",),
    fields={**DEEPSEEK_V32.fields, "layers": _layers, "index": read_index("interleaved")},
    fixed={
        **DEEPSEEK_V32.fixed,
        "indexer_rope_interleave": (True, "neighbours pair up in this family's index, too"),
    },
    render=_render,
    view=indexed(_DEFAULTS),
    gguf=replace(
        GGUF_INDEXED,
        architecture="glm-dsa",
        optional={**GGUF_INDEXED.optional, "attention.indexer.types": "indexer_types"},
        given=_gguf_given,
    ),
)
