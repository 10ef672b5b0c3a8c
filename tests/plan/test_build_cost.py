"""What a plan takes to build goes with the number of layers, and not with its square."""

import sys
from typing import Any

import pytest

from monolane.model import parse_config
from monolane.plan import build, cpu

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 64,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "laneformer": LLAMA
    | {"model_type": "laneformer", "num_lanes": 2, "broadcast_delay": 2, "sliding_window": 16}
    | {"sliding_window_n_layers": 2},
    "gemma3_text": LLAMA
    | {"model_type": "gemma3_text", "head_dim": 16, "query_pre_attn_scalar": 16}
    | {"sliding_window": 9},
    "qwen3_moe": LLAMA
    | {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2}
    | {"moe_intermediate_size": 32},
}


def calls(raw: dict[str, Any], layers: int) -> int:
    """Count the calls of functions, those of C too, that a config and its plan take."""
    count = 0

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        config = parse_config(raw | {"num_hidden_layers": layers})
        build(config, cpu(4), "float32", max_width=16, context=64)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", MODELS)
def test_twice_the_layers_take_twice_as_long(name: str) -> None:
    calls(MODELS[name], 8)  # what is made once
    few, many = calls(MODELS[name], 64), calls(MODELS[name], 128)
    assert many < 2.2 * few, (few, many)
