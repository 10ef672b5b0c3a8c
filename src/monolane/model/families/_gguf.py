"""How families spell a decoder in the metadata of a GGUF file, and the names of its tensors there.

A file's metadata is turned into the object of a config.json, which the family then reads: so its
rules stand in one place, and a message names the field of the file. The keys are llama.cpp's
(``Keys`` and ``MODEL_TENSORS`` of the ``gguf`` package; what an architecture does with them:
src/models of llama.cpp).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from monolane.errors import ConfigError
from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._rotary import (
    Llama3Scaling,
    PairScaling,
    PairStyle,
    ProportionalScaling,
    Rotary,
)
from monolane.model.families._rotary import THETA
from monolane.ops import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufSpelling:
    """What one architecture's files say otherwise than the family's config.json."""

    architecture: str
    style: PairStyle  # of the rotary pairs; "interleaved" where the converter reorders q and k
    # Key of metadata behind "ARCHITECTURE." -> field of config.json, besides the common ones.
    keys: Mapping[str, str] = field(default_factory=dict)
    # The same of keys that a file may leave out; zero and false mean that it does.
    optional: Mapping[str, str] = field(default_factory=dict)
    # Fields of config.json that the file leaves to its readers, from those that it says.
    given: Callable[[Fields], Mapping[str, Any]] = lambda fields: {}
    # Fields of ModelConfig that the converter has worked into the weights.
    folded: Mapping[str, Any] = field(default_factory=dict)
    # Fields of rope_scaling that the file leaves to its readers, where it says any.
    scaling: Mapping[str, Any] = field(default_factory=dict)
    # Names of tensors, other than GGUF_NAMES has them.
    names: Callable[[ModelConfig], Mapping[Role, str]] = lambda config: {}
    also: tuple[str, ...] = ()  # architectures whose files say the same, each by its own name
    tiled: bool = False  # value heads of gated delta rules lie as ops/delta/spec.py says
    # Its files say expert_count: one architecture may serve two families. None: some of them do.
    experts: bool | None = False
    # Its files say attention.sliding_window; those of another family of the architecture do not.
    windowed: bool = False
    # Values of expert_gating_func, 0 where there is none, that tell two such families apart.
    gating: tuple[int, ...] = ()


# Key behind "ARCHITECTURE." -> field of config.json, in all architectures.
_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
# The same of a stretch of the rotary embedding: field of rope_scaling.
_SCALING = {
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
_OLD_LINEAR = "rope.scale_linear"  # before 2023-11 the only stretch, with no type
# Said twice, unless an architecture means something of its own, or to others than executors.
_CHECKED = ("attention.value_length", "rope.dimension_count")
_SILENT = frozenset(("rope.scaling.finetuned", "tensor_data_layout", _OLD_LINEAR, *_CHECKED))
# Ids of tokens: field of config.json <- the keys that say it.
# Values that change nothing, of keys that are not read; of any key these are zero and false.
_NEUTRAL = {
    **dict.fromkeys(("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"), 1),
    **dict.fromkeys(("logit_scale", "residual_scale", "embedding_scale"), 1),
    "expert_weights_scale": 1,
    "attention.causal": 1,
}
_IDS = {
    "bos_token_id": ("bos_token_id",),
    "eos_token_id": ("eos_token_id", "eot_token_id", "eom_token_id"),
    "pad_token_id": ("padding_token_id",),
}

GGUF_NAMES = {
    Role.EMBEDDING: "token_embd.weight",
    Role.ATTENTION_NORM: "blk.{i}.attn_norm.weight",
    Role.Q: "blk.{i}.attn_q.weight",
    Role.K: "blk.{i}.attn_k.weight",
    Role.V: "blk.{i}.attn_v.weight",
    Role.Q_BIAS: "blk.{i}.attn_q.bias",
    Role.K_BIAS: "blk.{i}.attn_k.bias",
    Role.V_BIAS: "blk.{i}.attn_v.bias",
    Role.Q_NORM: "blk.{i}.attn_q_norm.weight",
    Role.K_NORM: "blk.{i}.attn_k_norm.weight",
    Role.O: "blk.{i}.attn_output.weight",
    Role.POST_ATTENTION_NORM: "blk.{i}.post_attention_norm.weight",
    Role.MLP_NORM: "blk.{i}.ffn_norm.weight",
    Role.GATE: "blk.{i}.ffn_gate.weight",
    Role.UP: "blk.{i}.ffn_up.weight",
    Role.DOWN: "blk.{i}.ffn_down.weight",
    Role.ROUTER: "blk.{i}.ffn_gate_inp.weight",
    Role.EXPERT_GATE: "blk.{i}.ffn_gate_exps.weight",
    Role.EXPERT_UP: "blk.{i}.ffn_up_exps.weight",
    Role.EXPERT_DOWN: "blk.{i}.ffn_down_exps.weight",
    Role.POST_MLP_NORM: "blk.{i}.post_ffw_norm.weight",
    Role.SINKS: "blk.{i}.attn_sinks.weight",
    Role.O_BIAS: "blk.{i}.attn_output.bias",
    Role.ROUTER_BIAS: "blk.{i}.ffn_gate_inp.bias",
    Role.EXPERT_GATE_BIAS: "blk.{i}.ffn_gate_exps.bias",
    Role.EXPERT_UP_BIAS: "blk.{i}.ffn_up_exps.bias",
    Role.EXPERT_DOWN_BIAS: "blk.{i}.ffn_down_exps.bias",
    Role.ROUTER_CORRECTION: "blk.{i}.exp_probs_b.bias",
    Role.SHARED_GATE: "blk.{i}.ffn_gate_shexp.weight",
    Role.SHARED_UP: "blk.{i}.ffn_up_shexp.weight",
    Role.SHARED_DOWN: "blk.{i}.ffn_down_shexp.weight",
    Role.SHARED_EXPERT_GATE: "blk.{i}.ffn_gate_inp_shexp.weight",
    Role.Q_DOWN: "blk.{i}.attn_q_a.weight",
    Role.KV_DOWN: "blk.{i}.attn_kv_a_mqa.weight",
    Role.K_UP: "blk.{i}.attn_k_b.weight",
    Role.V_UP: "blk.{i}.attn_v_b.weight",
    Role.KV_UP: "blk.{i}.attn_kv_b.weight",
    Role.INDEX_Q: "blk.{i}.indexer.attn_q_b.weight",
    Role.INDEX_K: "blk.{i}.indexer.attn_k.weight",
    Role.INDEX_NORM: "blk.{i}.indexer.k_norm.weight",
    Role.INDEX_NORM_BIAS: "blk.{i}.indexer.k_norm.bias",
    Role.INDEX_WEIGHTS: "blk.{i}.indexer.proj.weight",
    Role.DELTA_QKV: "blk.{i}.attn_qkv.weight",
    Role.DELTA_Z: "blk.{i}.attn_gate.weight",
    Role.DELTA_IN: "blk.{i}.ssm_in.weight",
    Role.DELTA_GATES: "blk.{i}.ssm_ba.weight",
    Role.DELTA_CONV: "blk.{i}.ssm_conv1d.weight",
    Role.DELTA_DECAY: "blk.{i}.ssm_a",
    Role.DELTA_STEP: "blk.{i}.ssm_dt.bias",
    Role.DELTA_NORM: "blk.{i}.ssm_norm.weight",
    Role.DELTA_OUT: "blk.{i}.ssm_out.weight",
    Role.MAMBA_IN: "blk.{i}.ssm_in.weight",
    Role.MAMBA_CONV: "blk.{i}.ssm_conv1d.weight",
    Role.MAMBA_CONV_BIAS: "blk.{i}.ssm_conv1d.bias",
    Role.MAMBA_DECAY: "blk.{i}.ssm_a",
    Role.MAMBA_STEP: "blk.{i}.ssm_dt.bias",
    Role.MAMBA_SKIP: "blk.{i}.ssm_d",
    Role.MAMBA_NORM: "blk.{i}.ssm_norm.weight",
    Role.MAMBA_OUT: "blk.{i}.ssm_out.weight",
    Role.LAUREL_LEFT: "blk.{i}.laurel_l.weight",
    Role.LAUREL_RIGHT: "blk.{i}.laurel_r.weight",
    Role.LAUREL_NORM: "blk.{i}.laurel_post_norm.weight",
    Role.FINAL_NORM: "output_norm.weight",
    Role.HEAD: "output.weight",
}
# In place of EXPERT_GATE and EXPERT_UP, if the converter was told to fuse them: of each expert the
# rows of gate, then those of up.
FUSED_EXPERTS = "blk.{i}.ffn_gate_up_exps.weight"
ROPE_DIVISORS = "rope_freqs.weight"  # one for each pair of a head
_STILL = 1e30  # of a pair that does not turn
# The same of LongRoPE, of long sequences and of short: field of rope_scaling.
LONG_ROPE = {
    "rope_factors_long.weight": "long_factor",
    "rope_factors_short.weight": "short_factor",
}
# Sizes of an index that chooses keys: key behind "ARCHITECTURE." -> field of config.json.
INDEX_KEYS = {
    "attention.indexer.head_count": "index_n_heads",
    "attention.indexer.key_length": "index_head_dim",
    "attention.indexer.top_k": "index_topk",
}
# How many of the last blocks predict tokens further ahead; an architecture that may have some has
# this key in ``optional``. See _ahead.py.
AHEAD = "nextn_predict_layers"


def gguf_fields(
    spelling: GgufSpelling, metadata: Mapping[str, Any], given: Mapping[str, Any], source: str
) -> Fields:
    """Return metadata as the fields of a config.json; ConfigError names a key that is not known.

    ``given`` are fields that the tensors say.
    """
    prefix = f"{spelling.architecture}."
    said = {key.removeprefix(prefix): x for key, x in metadata.items() if key.startswith(prefix)}
    said = {k: x for k, x in said.items() if k not in spelling.optional or not _is_zero(x)}
    keys = {**_KEYS, **spelling.keys, **spelling.optional}
    own = {*spelling.keys, *spelling.optional}
    layers = said.get("block_count")
    said = {key: x if key in own else _one_of_all(x, layers) for key, x in said.items()}
    known = {*keys, *_SCALING, *_SILENT}
    for key, value in said.items():
        # Whatever is not known may change the arithmetic. Zero and false mean "not at all".
        if key not in known and not _is_zero(value) and not _is_neutral(key, value):
            raise ConfigError(
                f"{source}: {prefix}{key}: this field of the metadata is not known here, so the "
                f"model may compute something else than executors do; got {value!r:.80}"
            )
    for key in spelling.keys if spelling.experts else ():
        if key not in said:
            raise ConfigError(
                f"{source}: {prefix}{key}: expected this field in a file with experts, got none"
            )
    raw: dict[str, Any] = {keys[key]: x for key, x in said.items() if key in keys} | dict(given)
    raw.setdefault("rope_theta", THETA)  # as llama.cpp has it, whatever Transformers' family says
    raw |= {place: _token_ids(metadata, names) for place, names in _IDS.items()}
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Sequence) and not isinstance(tokens, str):
        raw["vocab_size"] = len(tokens)
        for place in _IDS:  # those that are none: text/_gguf.py says so
            raw[place] = [x for x in raw[place] if type(x) is not int or 0 <= x < len(tokens)]
    if (scaling := _scaling(said)) is not None:
        raw["rope_scaling"] = {**scaling, **spelling.scaling}
    spelled = {place: f"{prefix}{key}" for key, place in (*keys.items(), *_SCALING.items())}
    if _OLD_LINEAR in said and not {"rope.scaling.type", "rope.scaling.factor"} & said.keys():
        spelled["factor"] = f"{prefix}{_OLD_LINEAR}"
    ids = {place: f"tokenizer.ggml.{names[0]}" for place, names in _IDS.items()}
    fields = Fields(raw, source, {**spelled, **ids, "rope_scaling": f"{prefix}rope.scaling"})
    _check_head(fields, {key: x for key, x in said.items() if key not in keys}, prefix)
    return Fields(raw | dict(spelling.given(fields)), source, fields.spelled)


def turned_part(fields: Fields) -> float:
    """Return how much of a head turns, of a file that says ``rope.dimension_count``."""
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    head = fields.size("head_dim", max(1, hidden // heads))
    turned = fields.size("rope_dimension_count", head)
    if turned > head:
        raise fields.fault("rope_dimension_count", f"at most {head}, the width of a head's keys")
    part = turned / head
    if int(head * part) < turned:  # the fraction is rounded down
        part = math.nextafter(part, 1.0)
    return part


def as_stored(
    spelling: GgufSpelling, config: ModelConfig, divisors: tuple[float, ...] | None
) -> ModelConfig:
    """Return the config of the weights as they lie in the file: pairs, folded and worked-out."""
    changes: dict[str, Any] = dict(spelling.folded)
    if config.delta is not None:
        changes["delta"] = replace(config.delta, tiled=spelling.tiled)
    for place in ("rotary", "local_rotary"):
        rotary: Rotary | None = getattr(config, place)
        if rotary is not None:
            changes[place] = replace(rotary, style=spelling.style)
    if divisors is not None:
        if config.rotary.scaling is not None:
            raise ConfigError(
                f"{ROPE_DIVISORS}: expected this tensor or a rope.scaling.type, got both"
            )
        changes["rotary"] = replace(changes["rotary"], scaling=PairScaling(divisors))
        turned = config.rotary_dim("main")
        changes["rotary"].frequencies(turned)  # ConfigError if their number is wrong
    return replace(config, **changes)


def named_stretch(rotary: Rotary, head_dim: int) -> Rotary:
    """Return a rotary whose divisors of pairs, if any, are a stretch that config.json can say.

    Where the last pairs stand still, a part of them turns; else it is Llama 3's stretch.

    The numbers that all published files share, 1 and 4 turns, are taken as given; the others follow
    from the divisors. ConfigError if these are not of that stretch.
    """
    if not isinstance(rotary.scaling, PairScaling):
        return rotary
    divisors = np.array(rotary.scaling.divisors)
    count = int((divisors == 1).sum())
    if count and (divisors[:count] == 1).all() and (divisors[count:] >= _STILL).all():
        part = ProportionalScaling(count / len(divisors))
        return replace(rotary, scaling=part if count < len(divisors) else None)
    plain = replace(rotary, scaling=None).frequencies(head_dim).astype(np.float64)
    low, high, factor = 1.0, 4.0, float(divisors.max())
    near = 1e-4  # far above the rounding of divisors, which are stored in float32
    blended = (divisors > 1 + near) & (divisors < factor * (1 - near))
    if blended.any():
        kept = (1 / divisors - 1 / factor) / (1 - 1 / factor)  # of a pair's frequency
        contexts = (low + kept * (high - low)) * 2 * math.pi / plain
        scaling = Llama3Scaling(factor, low, high, round(float(np.median(contexts[blended]))))
        if np.allclose(plain / scaling.stretch(plain, rotary.theta), divisors, rtol=near):
            return replace(rotary, scaling=scaling)
    raise ConfigError(
        f"{ROPE_DIVISORS}: expected divisors of Llama 3's stretch, for which config.json has "
        "words, got others; run the .gguf file as it is"
    )


def _scaling(said: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what rope_scaling would hold, or None where nothing is stretched."""
    found = {place: said[key] for key, place in _SCALING.items() if key in said}
    kind = found.get("rope_type")
    if kind is None:  # llama.cpp takes linear, and 0 for no stretch
        factor = found.get("factor", said.get(_OLD_LINEAR, 1.0))
        plain = isinstance(factor, int | float) and factor in (0, 1)
        return None if plain else {"rope_type": "linear", "factor": factor}
    return None if isinstance(kind, str) and kind == "none" else found


def _token_ids(metadata: Mapping[str, Any], names: tuple[str, ...]) -> list[Any]:
    said = (metadata.get(f"tokenizer.ggml.{name}") for name in names)
    found = [token for token in said if token is not None]
    # Lists have no hash; what is no id is refused where it is read.
    return list(dict.fromkeys(found)) if all(type(x) is int for x in found) else found


def _check_head(fields: Fields, said: Mapping[str, Any], prefix: str) -> None:
    """Check what the file says twice: the width of a head, and how much of it turns."""
    heads, hidden = fields.size("num_attention_heads"), fields.size("hidden_size")
    head_dim = fields.size("head_dim", max(1, hidden // heads))
    for key in _CHECKED:
        # The type first: a list of numbers is neither equal nor different.
        if key in said and (type(said[key]) is not int or said[key] != head_dim):
            raise ConfigError(
                f"{fields.source}: {prefix}{key}: expected {head_dim}, the width of a head's keys, "
                f"got {said[key]!r:.80}"
            )


def has_experts(metadata: Mapping[str, Any], architecture: str) -> bool:
    """Tell whether a file of that architecture says that its layers have experts."""
    return not _is_zero(metadata.get(f"{architecture}.expert_count", 0))


def _one_of_all(value: Any, layers: Any) -> Any:
    """Return one number in place of a list of it for each layer, as llama.cpp reads either."""
    listed = isinstance(value, np.ndarray) and value.ndim == 1
    if not listed or type(layers) is not int or len(value) != layers:
        return value
    return value[0].item() if len(value) and (value == value[0]).all() else value


def _is_neutral(key: str, value: Any) -> bool:
    return key in _NEUTRAL and isinstance(value, int | float) and value == _NEUTRAL[key]


def _is_zero(value: Any) -> bool:
    return isinstance(value, int | float) and value == 0
