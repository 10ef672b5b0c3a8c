"""The smallest model that has everything, for emulated devices: here and in tests/cuda."""

from typing import Any

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
