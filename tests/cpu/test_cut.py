"""Dense models cut into lanes that add up at once: the same model, in one process or several."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from blocks import BLOCKS, random_blocks

from monolane.cpu import CpuExecutor
from monolane.errors import BackendError
from monolane.executor_api import Advance
from monolane.model import (
    ModelConfig,
    Quantization,
    Weights,
    cut_weights,
    parse_config,
    quantize_matrix,
    tensor_specs,
    write_checkpoint,
)
from monolane.reference import ReferenceModel

TOKENS, LAYERS, COLUMNS = 40, 2, 128
IDS = np.random.default_rng(0).integers(90, size=TOKENS).tolist()
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": COLUMNS,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
# Case: what config.json says besides. With eight lanes each KV head serves two of them; a
# vocabulary of 97 has one head on the lanes' mean.
CASES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama, tied, odd vocabulary": {
        "model_type": "llama",
        "vocab_size": 97,
        "tie_word_embeddings": True,
    },
    "mistral": {"model_type": "mistral", "sliding_window": 9},
    "qwen2": {"model_type": "qwen2", "head_dim": 8},
    "qwen3": {"model_type": "qwen3"},
    "smollm3": {"model_type": "smollm3", "no_rope_layers": [1, 0], "head_dim": 8},
    "olmo2": {"model_type": "olmo2", "head_dim": 8},
    "gemma3": {"model_type": "gemma3_text", "sliding_window": 9, "sliding_window_pattern": 2},
    "a laneformer of one lane": {
        "model_type": "laneformer",
        "num_lanes": 1,
        "head_dim": 8,
        "broadcast_delay": 1,
    },
}


def write(folder: Path, case: str, dtype: Any = np.float32) -> Path:
    """Write a folder with random weights."""
    raw = SIZES | CASES[case]
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    rng = np.random.default_rng(0)
    tensors = []
    for spec in tensor_specs(parse_config(raw)):
        vector = len(spec.shape) == 1 or "norm" in spec.role
        values = (0.3 if vector else 0.15) * rng.standard_normal(spec.shape) + ("norm" in spec.role)
        tensors.append((spec.name, values.astype(dtype)))
    write_checkpoint(folder, tensors)
    return folder


def run(weights: Weights, lanes: int, workers: int | None = None, **more: Any) -> CpuExecutor:
    wanted = {"context": 64, "slots": 2, "patience": 60.0} | more
    return CpuExecutor(weights, lanes=lanes, workers=workers or lanes, **wanted)


@pytest.mark.parametrize("case", CASES)
def test_lanes_compute_what_the_model_computes(case: str, tmp_path: Path) -> None:
    """Also with two lanes to a worker and two workers to a lane, and token by token."""
    weights = Weights.open(write(tmp_path / "model", case))
    model = ReferenceModel(weights)
    wanted = model.forward(IDS, model.new_cache())
    # As in tests/engine/test_dense.py: 4 products in a row in each layer, and the head's, whose
    # sums have at most 128 terms, each off by sqrt(128) 2^-24, in two evaluations, 6 times that for
    # the largest of all logits; and angles, 3 units of up to 40 radians in each layer. Another
    # order of the same sums is what that bound is about.
    sums = 6 * np.sqrt(2 * (4 * LAYERS + 1) * COLUMNS)
    bound = (sums + 6 * 3 * TOKENS * np.sqrt(LAYERS)) * 2.0**-24 * wanted.std()
    assert wanted.std() > 0.5
    for lanes, workers in ((2, 2), (4, 2), (8, 8), (2, 4)):
        executor = run(weights, lanes, workers, dtype="float32")
        assert executor.plan.config.num_lanes == lanes
        found = executor.logits(0, IDS)
        assert np.abs(found - wanted).max() < bound
        by_token = [executor.logits(1, [token]) for token in IDS[:5]]
        np.testing.assert_array_equal(np.concatenate(by_token), found[:5])


def in_blocks(weights: Weights, name: str) -> Weights:
    """Put random blocks in the places of a model's layers' matrices."""
    rng = np.random.default_rng(1)
    layers, quantized = [], {}
    for i, layer in enumerate(weights.layers):
        layers.append({role: x for role, x in layer.items() if x.ndim == 2})
        for role, x in layer.items():
            if x.ndim > 2:
                quantized[role, i] = random_blocks(rng, name, x.shape)
    return Weights(weights.config, weights.outer, tuple(layers), quantized)


def in_codes(weights: Weights, bits: int) -> Weights:
    """Quantise a model's layers' matrices."""
    scheme = Quantization(bits, ignore=("lm_head",))
    layers, quantized = [], {}
    for i, layer in enumerate(weights.layers):
        layers.append({role: x for role, x in layer.items() if x.ndim == 2})
        quantized |= {(r, i): quantize_matrix(x, scheme) for r, x in layer.items() if x.ndim > 2}
    config: ModelConfig = replace(weights.config, quantization=scheme)
    return Weights(config, weights.outer, tuple(layers), quantized)


@pytest.mark.parametrize("lanes", [2, 4])
@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16", "int8", "int4", *BLOCKS])
def test_workers_cut_what_numpy_cuts(
    stored: str, lanes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bits of lanes that are handed over ready, whatever the matrices are stored in."""
    wide = 256 * lanes  # whole super-blocks for each lane
    sizes = {"hidden_size": 256, "intermediate_size": wide, "head_dim": wide // 8}
    monkeypatch.setitem(CASES, "wide", {"model_type": "llama", "num_key_value_heads": 2} | sizes)
    dtype = {"float32": np.float32, "float16": np.float16}.get(stored, ml_dtypes.bfloat16)
    dense = Weights.open(write(tmp_path / "model", "wide", dtype))
    if stored in BLOCKS:
        dense = in_blocks(dense, stored)
    elif stored.startswith("int"):
        dense = in_codes(dense, int(stored[3:]))
    wanted = CpuExecutor(cut_weights(dense, lanes), context=64, slots=1, workers=3).logits(0, IDS)
    np.testing.assert_array_equal(run(dense, lanes, 3).logits(0, IDS), wanted)


@pytest.mark.parametrize(
    ("case", "ranks", "lanes", "dtype"),
    [
        ("qwen2", 2, 2, "auto"),
        ("gemma3", 2, 4, "int8"),
        pytest.param("llama, tied, odd vocabulary", 4, 8, "bfloat16", marks=pytest.mark.slow),
        ("olmo2", 2, 2, "bfloat16"),
    ],
)
def test_ranks_have_the_bits_of_one_process(
    case: str, ranks: int, lanes: int, dtype: str, tmp_path: Path
) -> None:
    weights = Weights.open(write(tmp_path / "model", case))
    alone = run(weights, lanes, dtype=dtype)
    executor = run(weights, lanes, dtype=dtype, ranks=ranks)
    try:
        for one in (executor, alone):
            one.logits(0, IDS[:20])
            one.copy(0, 1)
        np.testing.assert_array_equal(executor.logits(1, IDS[20:]), alone.logits(1, IDS[20:]))
        assert draw(executor) == draw(alone)
        # A head that all lanes share is cut by workers, whose shares are not quite equal.
        whole = alone.converted_bytes
        assert 0.95 * whole <= executor.converted_bytes * ranks <= 1.05 * whole
    finally:
        executor.close()


def draw(executor: CpuExecutor) -> list[int]:
    executor.start([Advance(slot=0, token_ids=tuple(IDS[20:30]), budget=20)])
    while not executor.read(0.1):
        pass
    return [event.token_id for event in executor.take()]


def test_a_file_of_blocks_is_cut_by_its_ranks(
    tiny_llama: tuple[dict[str, Any], dict[str, Any]],
    write_gguf: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """Rows of 64 columns are two blocks of Q8_0: one for each of two ranks."""
    from gguf.quants import GGMLQuantizationType, quantize

    fields, tensors = tiny_llama
    fields["llama.feed_forward_length"] = 128
    rng = np.random.default_rng(1)
    for name, values in tensors.items():
        shape = tuple(128 if size == 96 else size for size in values.shape)
        if name.startswith("blk") and values.ndim == 2:
            values = (0.15 * rng.standard_normal(shape)).astype(np.float32)
            tensors[name] = ("Q8_0", quantize(values, GGMLQuantizationType.Q8_0))
    weights = Weights.open(write_gguf(tmp_path / "llama.gguf", fields, tensors))
    alone, executor = run(weights, 2), run(weights, 2, ranks=2)
    try:
        np.testing.assert_array_equal(executor.logits(0, IDS), alone.logits(0, IDS))
    finally:
        executor.close()
    with pytest.raises(BackendError, match="whole blocks of 32 columns each, as o of layer 0"):
        run(weights, 4, ranks=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": 3}, "cut into 3 lanes for 3 ranks: lanes: expected a number that divides"),
        ({"ranks": 3, "lanes": 4}, "ranks: expected one of 1, 2, 4, which divide this model's 4"),
        ({"lanes": 0}, "cut into 0 lanes"),
        ({"lanes": 8, "dtype": "int8"}, "i8 needs rows of a multiple of 32 columns, got 16 in o"),
    ],
)
def test_what_cannot_be_cut_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    weights = Weights.open(write(tmp_path / "model", "llama"))
    with pytest.raises(BackendError, match=message):
        CpuExecutor(weights, context=64, slots=1, **{"workers": 12} | options)


def test_a_laneformers_lanes_stay_as_they_are(tiny_model: Path) -> None:
    weights = Weights.open(tiny_model)
    assert CpuExecutor(weights, context=64, slots=1, lanes=2).plan.config == weights.config
    with pytest.raises(BackendError, match="lanes: expected None or the 2 that this model has"):
        CpuExecutor(weights, context=64, slots=1, lanes=4)
