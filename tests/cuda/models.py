"""Small models with random weights, made in memory."""

from typing import Any

import numpy as np

from monolane.model import Role, Weights, lane_shape, layer_roles, parse_config

# Two lanes, windows in two of four layers, outputs that meet two layers later.
TINY: dict[str, Any] = {
    "model_type": "laneformer",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 256,
    "num_lanes": 2,
    "broadcast_delay": 2,
    "sliding_window": 16,
    "swa_layers": [0, 1],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def random_weights(**changes: Any) -> Weights:
    """Return a model of TINY's shape, float32, the same at every call."""
    config = parse_config({**TINY, **changes}, "tiny")
    rng = np.random.default_rng(0)

    def draw(role: Role) -> np.ndarray[Any, Any]:
        values: np.ndarray[Any, Any] = rng.normal(scale=0.3, size=lane_shape(config, role))
        return values.astype(np.float32)

    outer = {role: draw(role) for role in (Role.EMBEDDING, Role.FINAL_NORM, Role.HEAD)}
    layers = tuple({role: draw(role) for role in layer_roles(config)} for _ in config.layers)
    return Weights(config, outer, layers)
