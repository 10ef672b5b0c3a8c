"""Numbers beside the blocks of a GGUF file, by which all of a tensor's are multiplied."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from monolane import Engine
from monolane.errors import BackendError, CheckpointError

from .converted import metadata, tensors
from .gguf_cases import CASES
from .test_gguf import random_model

NVFP4 = gguf.GGMLQuantizationType.NVFP4
SIZES = {"hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 64, "head_dim": 16}
IDS = list(range(3, 43))
Write = Callable[..., Path]


def blocks(shape: tuple[int, ...], rng: Any) -> np.ndarray:
    """Random NVFP4, whose scales lie where a tool puts them that has a factor beside them."""
    raw = rng.integers(256, size=(*shape[:-1], shape[-1] // 64, 36), dtype=np.uint8)
    raw[..., :4] = rng.integers(0x60, 0x78, (*raw.shape[:-1], 4))
    return raw.reshape(*shape[:-1], -1)


def files(case: str, write_gguf: Write, folder: Path) -> dict[str, Path]:
    """A model whose matrices are in NVFP4, with factors; the floats that are meant; without."""
    family, architecture, changes = CASES[case]
    model = random_model(family, **changes | SIZES)
    rng = np.random.default_rng(0)
    stored: dict[str, Any] = tensors(model, architecture)
    meant, bare = dict(stored), dict(stored)
    for name, array in list(stored.items()):
        if array.ndim < 2 or "token_embd" in name or "gate_inp" in name:
            continue
        packed = blocks(array.shape, rng)
        count = array.shape[0] if array.ndim == 3 else 1
        # Of each another, such that numbers have the spread of weights.
        factors = rng.uniform(2e-4, 8e-4, count).astype(np.float32)
        numbers = gguf.quants.dequantize(packed, NVFP4).reshape(array.shape)
        stored[name] = bare[name] = ("NVFP4", packed)
        stored[name.removesuffix("weight") + "scale"] = factors
        stored[name.removesuffix("weight") + "input_scale"] = factors + 1
        wide = factors[:, None, None] if array.ndim == 3 else factors
        meant[name] = numbers * wide
        assert 0.005 < meant[name].std() < 0.5
    said = metadata(model.config, architecture)
    held = {"stored": stored, "meant": meant, "bare": bare}
    return {x: write_gguf(folder / f"{x}.gguf", said, y) for x, y in held.items()}


def logits(path: Path, backend: str, **options: Any) -> np.ndarray:
    with Engine.load(path, backend, **options) as engine:
        return engine.logits(IDS)


@pytest.mark.parametrize("case", ["Llama 2", "Qwen3-MoE"])
def test_a_factor_is_a_part_of_every_number(case: str, write_gguf: Write, tmp_path: Path) -> None:
    found = files(case, write_gguf, tmp_path)
    wanted = logits(found["meant"], "reference")
    np.testing.assert_array_equal(logits(found["stored"], "reference"), wanted)
    # Activations of 8 bits: see test_the_cpu_multiplies_by_blocks_as_they_are.
    for options in ({}, {"dtype": "int8"}):
        error = np.abs(logits(found["stored"], "cpu", **options) - wanted)
        assert 0 < error.mean() < 0.05 * wanted.std()
    assert np.abs(logits(found["bare"], "cpu") - wanted).mean() > 0.2 * wanted.std()


def test_ranks_share_the_rows_and_the_factor(write_gguf: Write, tmp_path: Path) -> None:
    """Lanes have 64 columns each of what is cut by columns: a block."""
    path = files("Llama 2", write_gguf, tmp_path)["stored"]
    wanted = logits(path, "reference")
    error = np.abs(logits(path, "cpu", ranks=2) - wanted)
    assert 0 < error.mean() < 0.05 * wanted.std()


def test_experts_in_a_file_keep_their_factors(write_gguf: Write, tmp_path: Path) -> None:
    path = files("Qwen3-MoE", write_gguf, tmp_path)["stored"]
    stowed = logits(path, "cpu", expert_memory="1M")
    np.testing.assert_array_equal(stowed, logits(path, "cpu"))


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (np.ones(2, np.float32), r"expected F32 of shape \[1\], got \[2\]"),
        (np.ones(1, np.float16), r"expected F32 of shape \[1\]"),
        (np.zeros(1, np.float32), "expected a number above zero, got 0"),
        (np.full(1, np.inf, np.float32), "expected a number above zero, got inf"),
    ],
)
def test_another_factor_is_refused_by_its_name(
    numbers: np.ndarray, message: str, tiny_llama: Any, write_gguf: Write, tmp_path: Path
) -> None:
    fields, arrays = tiny_llama
    name = "blk.1.attn_q.weight"
    packed = blocks(arrays[name].shape, np.random.default_rng(0))
    stored = arrays | {name: ("NVFP4", packed), "blk.1.attn_q.scale": numbers}
    path = write_gguf(tmp_path / "x.gguf", fields, stored)
    with pytest.raises(CheckpointError, match=rf"tensor 'blk.1.attn_q.scale': {message}"):
        logits(path, "reference")


def test_a_factor_beside_floats_is_a_tensor_too_many(
    tiny_llama: Any, write_gguf: Write, tmp_path: Path
) -> None:
    fields, arrays = tiny_llama
    stored = arrays | {"blk.1.attn_q.scale": np.ones(1, np.float32)}
    with pytest.raises(CheckpointError, match="got 1 more: 'blk.1.attn_q.scale'"):
        logits(write_gguf(tmp_path / "x.gguf", fields, stored), "reference")


def test_an_embedding_with_a_factor_is_the_reference_s_alone(
    tiny_llama: Any, write_gguf: Write, tmp_path: Path
) -> None:
    fields, arrays = tiny_llama
    name = "token_embd.weight"
    packed = blocks(arrays[name].shape, np.random.default_rng(0))
    scale = {"token_embd.scale": np.full(1, 1e-3, np.float32)}
    path = write_gguf(tmp_path / "x.gguf", fields, arrays | {name: ("NVFP4", packed)} | scale)
    assert np.isfinite(logits(path, "reference")).all()
    with pytest.raises(BackendError, match="embedding: expected blocks without a number beside"):
        logits(path, "cpu")
