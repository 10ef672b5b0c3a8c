"""What is allocated is bounded by the tensors that are there, never by a config's number alone."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from monolane.errors import ConfigError
from monolane.model import Weights, parse_config, tensor_specs, write_checkpoint

RAW: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 64,
    "torch_dtype": "bfloat16",
}
MOST = 16 << 20  # bytes; the models here have 0.3 MB


def tensors() -> list[tuple[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        (s.name, rng.normal(scale=0.3, size=s.shape).astype(ml_dtypes.bfloat16))
        for s in tensor_specs(parse_config(RAW))
    ]


def peak_of(folder: Path) -> int:
    """Return the bytes that reading a folder takes at most, whether it is read or refused."""
    tracemalloc.start()
    try:
        Weights.open(folder)
    except ConfigError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize("block", [[1, 1 << 24], [1 << 24, 1 << 24], [1, 97]])
def test_blocks_wider_than_every_matrix(tmp_path: Path, block: list[int]) -> None:
    stored: list[tuple[str, np.ndarray]] = []
    for name, array in tensors():
        if "_proj" not in name:
            stored.append((name, array))
            continue
        rows = 1 if block[0] > 1 else len(array)
        scales = np.full((rows, 1), 0.5, np.float32)
        stored += [(name, array.astype(ml_dtypes.float8_e4m3fn)), (f"{name}_scale_inv", scales)]
    write_checkpoint(tmp_path, stored)
    said = {"quant_method": "fp8", "weight_block_size": block}
    (tmp_path / "config.json").write_text(json.dumps(RAW | {"quantization_config": said}))
    assert peak_of(tmp_path) < MOST
    found = Weights.open(tmp_path).layers[0]
    for name, array in tensors():
        if name == "model.layers.0.self_attn.q_proj.weight":
            (q,) = (x for role, x in found.items() if role == "q")
            coded = array.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(0.5)
            assert np.array_equal(q[0].astype(np.float32), coded)


def test_experts_times_layers_are_not_named_one_by_one(tmp_path: Path) -> None:
    """12.6 million names, of a folder that has 21 tensors."""
    write_checkpoint(tmp_path, tensors())
    mixture = {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 1024,
        "num_experts": 4096,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    }
    (tmp_path / "config.json").write_text(json.dumps(RAW | mixture))
    assert peak_of(tmp_path) < MOST
    with pytest.raises(ConfigError, match="1024 layers and 4096 experts"):
        Weights.open(tmp_path)


def test_a_few_missing_tensors_are_still_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(RAW))
    write_checkpoint(tmp_path, tensors()[:5])
    with pytest.raises(Exception, match="are missing: 'lm_head.weight'"):
        Weights.open(tmp_path)
