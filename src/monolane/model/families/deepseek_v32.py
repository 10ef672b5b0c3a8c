"""DeepSeek-V3.2: a DeepSeek-V3 with an index that chooses the keys that each layer sees.

See ops/attention/index.py. The index turns halves of its heads, where attention turns neighbours,
also in GGUF files. Where a field is not there it means what Transformers takes for it.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model.families._family import layer_count
from monolane.model.families._gguf import INDEX_KEYS, GgufSpelling
from monolane.model.families._sparse import DENSE, SPARSE
from monolane.model.families.deepseek import DEEPSEEK_V3, render_as
from monolane.ops import Index, Role

_INDEXED = "indexed_attention"
_INDEXER = "model.layers.{i}.self_attn.indexer."
_NAMES = {
    Role.INDEX_Q: _INDEXER + "wq_b.weight",
    Role.INDEX_K: _INDEXER + "wk.weight",
    Role.INDEX_NORM: _INDEXER + "k_norm.weight",
    Role.INDEX_NORM_BIAS: _INDEXER + "k_norm.bias",
    Role.INDEX_WEIGHTS: _INDEXER + "weights_proj.weight",
}
_DEFAULTS: dict[str, Any] = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 2048,
}


def indexed(defaults: Mapping[str, Any]) -> Callable[[Fields], Fields]:
    """Return a view with defaults, in which layers are of one kind, as they are in the files."""

    def view(fields: Fields) -> Fields:
        there = {name: value for name, value in fields.raw.items() if value is not None}
        found = Fields({**defaults, **there}, fields.source, fields.spelled)
        if there.get("layer_types") == [_INDEXED] * layer_count(found):
            del there["layer_types"]
        return Fields({**defaults, **there}, fields.source, fields.spelled)

    return view


def read_index(style: Literal["half", "interleaved"]) -> Callable[[Fields], Index]:
    """Return how to read the sizes of an index, whose pairs are as ``style`` says."""

    def read(fields: Fields) -> Index:
        return Index(
            heads=fields.size("index_n_heads"),
            width=fields.size("index_head_dim"),
            chosen=fields.size("index_topk"),
            style=style,
        )

    return read


def render_indexed(kind: str, model_type: str) -> Callable[[ModelConfig], dict[str, Any]]:
    """Return how a family with an index is written, for the classes named ``kind``."""

    def render(config: ModelConfig) -> dict[str, Any]:
        index = config.index
        assert index is not None
        said = render_as(kind, model_type)(config)
        for name in ("rope_interleave", "first_k_dense_replace"):
            del said[name]
        return said | {
            "mlp_layer_types": [SPARSE if x.experts else DENSE for x in config.layers],
            "index_n_heads": index.heads,
            "index_head_dim": index.width,
            "index_topk": index.chosen,
        }

    return render


_LATENT_GGUF = DEEPSEEK_V3.gguf
assert _LATENT_GGUF is not None


def read_gguf_indexed(fields: Fields) -> dict[str, Any]:
    """Return what a GGUF file of such a model leaves to its readers: as of DeepSeek-V3."""
    assert _LATENT_GGUF is not None
    fields.fixed("expert_gating_func", 2, "experts of this family are chosen by sigmoids")
    return dict(_LATENT_GGUF.given(fields))


GGUF_INDEXED: GgufSpelling = replace(
    _LATENT_GGUF,
    architecture="deepseek32",
    keys={**_LATENT_GGUF.keys, **INDEX_KEYS},
    given=read_gguf_indexed,
    gating=(),
)

DEEPSEEK_V32 = replace(
    DEEPSEEK_V3,
    name="deepseek_v32",
    model_types=("deepseek_v32",),
    fields={**DEEPSEEK_V3.fields, "index": read_index("half")},
    fixed={
        **DEEPSEEK_V3.fixed,
        "mlp_bias": (False, "executors have no biases in the MLP"),
        "rope_interleave": (True, "neighbours pair up in this family"),
    },
    names=lambda config: {**DEEPSEEK_V3.names(config), **_NAMES},
    render=render_indexed("DeepseekV32", "deepseek_v32"),
    view=indexed(_DEFAULTS),
    gguf=GGUF_INDEXED,
    ahead=None,
)
