"""Configs of published models by name, so that their plans can be studied without their files."""

from typing import Any

from monolane.model import ModelConfig, parse_config

# kogai/laneformer-2b-it, from its model card.
_LANEFORMER_2B: dict[str, Any] = {
    "model_type": "laneformer",
    "hidden_size": 3072,
    "intermediate_size": 12288,
    "num_hidden_layers": 15,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "num_lanes": 8,
    "broadcast_delay": 2,
    "use_early_comm": False,
    "lm_head_type": "vocab_parallel",
    "sliding_window": 2048,
    "swa_layers": list(range(10)),
    "rope_theta": 10000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
_NAMED = {"laneformer-2b": _LANEFORMER_2B}

NAMES = tuple(_NAMED)


def named_config(name: str) -> ModelConfig:
    """Return the config of a published model; its name is one of NAMES."""
    return parse_config(_NAMED[name], name)
