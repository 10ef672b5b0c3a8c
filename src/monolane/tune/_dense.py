"""An ordinary dense decoder's folder (Llama and its like), read as the Laneformer that it can be.

A Laneformer whose lanes exchange at once computes what a dense decoder computes, so reading is a
matter of sizes: the fields that both have are taken over and checked by the Laneformer's own
reader, and what a Laneformer has no arithmetic for is refused here, by name.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from monolane.errors import CheckpointError, ConfigError
from monolane.model import Checkpoint, ModelConfig, parse_config, read_json_object

HeadName = Literal["auto", "vocab_parallel", "replicate"]

# Families whose arithmetic is Llama's, up to what ``_check`` looks at.
FAMILIES = ("llama", "mistral", "qwen2")
_REFUSED = {
    "qwen3": "it norms queries and keys (q_norm, k_norm), and a Laneformer does not",
    "gemma": "its norms, its MLP and its embedding scale differ from Llama's",
    "mixtral": "it has experts, and a Laneformer has none",
    "laneformer": "it is a Laneformer already",
    "laneformer_tp": "it is a Laneformer already",
}
_SHARED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "hidden_act",
    "head_dim",
    "attention_bias",
    "mlp_bias",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)
_HEAD = "lm_head.weight"
_EMBEDDING = "model.embed_tokens.weight"
# Transformers' own defaults, for fields that a config.json may leave out.
_DEFAULT_EPS = 1e-6
_DEFAULT_WINDOW = 4096  # of Mistral


@dataclass(frozen=True, slots=True)
class Dense:
    """A dense decoder on disk: its weights, its KV heads, and the Laneformer's config."""

    folder: Path
    checkpoint: Checkpoint
    num_kv_heads: int  # as stored; the Laneformer may repeat them
    config: ModelConfig

    @classmethod
    def open(
        cls, folder: Path, *, lanes: int, delay: int, early: bool = False, head: HeadName = "auto"
    ) -> "Dense":
        """Read ``folder`` for ``lanes`` lanes with this delay in layers.

        ``early`` lets the first ``delay`` layers exchange at once; ``head`` is where the lanes
        meet for the logits (auto: vocab_parallel where the vocabulary divides). ConfigError and
        CheckpointError say what does not fit, and what would.
        """
        path = folder / "config.json"
        if not path.is_file():
            raise ConfigError(f"{folder}: expected a model folder with a config.json in it")
        raw = read_json_object(path)
        _check(raw, str(path))
        checkpoint = Checkpoint.open(folder)
        _check_biases(checkpoint, str(path))
        fields = _fields(raw, checkpoint, str(path), lanes, head)
        fields |= {"broadcast_delay": delay, "use_early_comm": early}
        config = parse_config(fields, f"{path}, in {lanes} lanes")
        return cls(folder, checkpoint, _kv_heads(raw), config)


def _check(raw: Mapping[str, Any], source: str) -> None:
    kind = raw.get("model_type")
    if kind not in FAMILIES:
        why = _REFUSED.get(str(kind), "its arithmetic is not known to be Llama's")
        raise ConfigError(
            f"{source}: model_type: expected one of {', '.join(FAMILIES)}, got {kind!r}: {why}"
        )
    if raw.get("quantization_config"):
        raise ConfigError(
            f"{source}: quantization_config: expected float weights, got quantised ones; convert "
            "the model that they were made from"
        )
    if raw.get("partial_rotary_factor", 1) not in (1, None):
        raise ConfigError(
            f"{source}: partial_rotary_factor: expected 1, as all of a Laneformer's head turns, "
            f"got {raw['partial_rotary_factor']}"
        )


def _check_biases(checkpoint: Checkpoint, source: str) -> None:
    """Refuse biases and extra norms; biases that are all zero may be there, and are left out."""
    for name in checkpoint:
        if name.endswith((".q_norm.weight", ".k_norm.weight")):
            raise CheckpointError(
                f"{source}: tensor {name!r}: a Laneformer does not norm queries and keys, and the "
                "norm cannot be folded into a matrix; there is no exact conversion"
            )
        if name.endswith(".bias") and np.any(checkpoint[name]):
            raise CheckpointError(
                f"{source}: tensor {name!r}: a Laneformer has no biases, and these are not zero; "
                "there is no exact conversion (Qwen2's queries, keys and values have biases)"
            )


def _fields(
    raw: Mapping[str, Any], checkpoint: Checkpoint, source: str, lanes: int, head: HeadName
) -> dict[str, Any]:
    """Return the Laneformer's config.json, but for its delay."""
    fields = {name: raw[name] for name in _SHARED if raw.get(name) is not None}
    vocabulary = raw.get("vocab_size")
    if head == "auto":
        even = isinstance(vocabulary, int) and vocabulary % lanes == 0
        head = "vocab_parallel" if even else "replicate"
    return {
        "norm_eps": fields.pop("rms_norm_eps", _DEFAULT_EPS),
        **fields,
        "model_type": "laneformer",
        "num_lanes": lanes,
        "num_key_value_heads": _repeated_kv_heads(raw, source, lanes),
        "lm_head_type": head,
        "replicated_rmsn_scale": False,
        "tie_word_embeddings": bool(raw.get("tie_word_embeddings")) or _HEAD not in checkpoint,
        "dtype": checkpoint[_EMBEDDING].dtype.name if _EMBEDDING in checkpoint else "bfloat16",
        **_windows(raw),
    }


def _kv_heads(raw: Mapping[str, Any]) -> int:
    return int(raw.get("num_key_value_heads") or raw["num_attention_heads"])


def _repeated_kv_heads(raw: Mapping[str, Any], source: str, lanes: int) -> int:
    """KV heads that the lanes can share out evenly: those there are, or each of them repeated.

    A repeated head is exact, as each query head reads a copy of its own; it costs cache and reads.
    """
    heads, inner = raw.get("num_attention_heads"), raw.get("intermediate_size")
    if not isinstance(heads, int) or not isinstance(inner, int) or lanes < 1:
        return lanes  # the Laneformer's reader names the field
    if heads % lanes or inner % lanes:
        fitting = [n for n in range(1, heads + 1) if math.gcd(heads, inner) % n == 0]
        raise ConfigError(
            f"{source}: lanes: expected a number that divides num_attention_heads ({heads}) and "
            f"intermediate_size ({inner}), one of {', '.join(map(str, fitting))}; got {lanes}"
        )
    kv_heads = math.lcm(_kv_heads(raw), lanes)
    if heads % kv_heads:
        raise ConfigError(
            f"{source}: lanes: {_kv_heads(raw)} KV heads for {heads} query heads cannot be shared "
            f"out to {lanes} lanes, not even repeated; give a divisor of {_kv_heads(raw)}"
        )
    return kv_heads


def _windows(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Laneformer's fields for the layers that Mistral or Qwen2 windows."""
    layers = raw.get("num_hidden_layers", 0)
    if raw["model_type"] == "llama":
        return {}
    window, first = raw.get("sliding_window", _DEFAULT_WINDOW), 0
    if raw["model_type"] == "qwen2":
        window = window if raw.get("use_sliding_window") else None
        first = raw.get("max_window_layers", 28)
    if window is None:
        return {}
    kinds = raw.get("layer_types") or ["sliding_attention"] * layers
    named = [i for i in range(first, layers) if kinds[i] == "sliding_attention"]
    return {"sliding_window": window, "swa_layers": named}
