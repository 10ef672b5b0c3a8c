"""The device packs as the specification does, whatever the format, and with small staging too."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from emulated_gpu import EmulatedGpu
from models import random_weights
from test_pack import layout_of
from test_pack import load as load_golden

from monolane.cuda import _load, _tables
from monolane.cuda._load import load
from monolane.cuda._pack import pack, pack_scales
from monolane.cuda._tables import make_tables
from monolane.model import (
    FORMATS,
    Blocks,
    Kind,
    Quantization,
    Quantized,
    Role,
    Weights,
    lane_shape,
    layer_roles,
    parse_config,
    quantize_matrix,
)


def rounded(weights: Weights) -> Weights:
    """The same in float16, with a row of zeros and one whose scale would be no number."""
    layers = tuple({r: x.astype(np.float16) for r, x in y.items()} for y in weights.layers)
    layers[0][Role.DOWN][1, 3] = 0
    layers[0][Role.DOWN][1, 4] = np.linspace(-2e-7, 6e-8, layers[0][Role.DOWN].shape[-1])
    outer = {role: array.astype(np.float16) for role, array in weights.outer.items()}
    return replace(weights, outer=outer, layers=layers)


@pytest.mark.parametrize(
    ("name", "blocks", "dtype", "staging"),
    [
        ("delay1_8lanes", 3, "bfloat16", 5000),  # matrices in pieces, rows that do not divide
        ("replicate_head", 2, "float16", 1 << 20),
        ("odd", 2, "bfloat16", 1 << 20),
        ("delay1_8lanes", 3, "float8", 5000),
        ("half", 2, "float8", 1 << 20),  # stored in float16, a row of zeros, columns of any number
    ],
)
def test_runs_are_those_of_the_specification(
    make_gpu: Callable[..., EmulatedGpu],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    blocks: int,
    dtype: str,
    staging: int,
) -> None:
    monkeypatch.setattr(_load, "STAGING_BYTES", staging)
    monkeypatch.setattr(_load, "_SHARE_BYTES", 512)  # several threads read
    # The random model's DOWN has 33 columns: the last one has no neighbour.
    made = random_weights(intermediate_size=66)
    if name == "half":
        made = rounded(made)
    weights = made if name in ("odd", "half") else load_golden(name)
    layout = layout_of(weights, blocks, dtype, slot_bytes=8 << 10)
    gpu = make_gpu()
    loaded = load(gpu, layout, weights)
    wanted = pack(layout, weights)
    found = gpu.read(loaded.runs, wanted.size).reshape(wanted.shape)
    np.testing.assert_array_equal(found, wanted)
    scales = pack_scales(layout, weights)
    assert (scales.size > 0) == (dtype == "float8")
    if scales.size:
        got = gpu.read(loaded.row_scales, scales.nbytes).view(np.float32)
        np.testing.assert_array_equal(got.reshape(scales.shape), scales)
    assert gpu.allocations == 1 + (dtype == "float8"), "staging is given back"


# Whole blocks of every format in each matrix.
DENSE = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
BLOCKS = [x.name for x in FORMATS.values() if x.in_blocks]


def quantised(name: str) -> Weights:
    """A random model whose matrices and embedding are stored in a format."""
    config, rng = parse_config(DENSE), np.random.default_rng(0)
    plain: dict[tuple[Role, int | None], np.ndarray] = {}
    coded: dict[tuple[Role, int | None], Quantized | Blocks] = {}
    places: list[tuple[Role, int | None]] = [(role, 0) for role in layer_roles(config)]
    places += [(role, None) for role in (Role.EMBEDDING, Role.FINAL_NORM, Role.HEAD)]
    for role, layer in places:
        shape = lane_shape(config, role)
        if role.kind is Kind.NORM:
            plain[role, layer] = rng.normal(size=shape).astype(np.float32)
        elif name in BLOCKS:
            # No byte of a float16 is so large that the number is none.
            size = FORMATS[name].row_bytes(shape[-1])
            data = rng.integers(60, size=(*shape[:-1], size), dtype=np.uint8)
            coded[role, layer] = Blocks(name, data, shape[-1])
        else:
            wide = rng.normal(size=shape).astype(np.float32)
            coded[role, layer] = quantize_matrix(wide, Quantization(int(name.removeprefix("int"))))
    outer = {role: x for (role, layer), x in plain.items() if layer is None}
    layers = ({role: x for (role, layer), x in plain.items() if layer == 0},)
    return Weights(config, outer, layers, coded)


@pytest.mark.parametrize("name", ["int8", "int4", *BLOCKS])
def test_quantised_matrices_are_the_numbers_that_they_mean(
    make_gpu: Callable[..., EmulatedGpu], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(_load, "_SHARE_BYTES", 7000)  # several threads, a last piece that is short
    monkeypatch.setattr(_tables, "_WIDENED_ROWS", 7)
    weights = quantised(name)
    wide = weights.dequantized()
    for dtype in ("bfloat16", "float8"):
        layout = layout_of(weights, 3, dtype, slot_bytes=8 << 10)
        gpu = make_gpu()
        loaded = load(gpu, layout, weights)
        wanted = pack(layout, wide)
        assert np.unique(wanted).size > 2, "numbers that differ"
        found = gpu.read(loaded.runs, wanted.size).reshape(wanted.shape)
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(pack(layout, weights), wanted)
        embedding = make_tables(layout, weights).embedding
        np.testing.assert_array_equal(embedding, make_tables(layout, wide).embedding)
