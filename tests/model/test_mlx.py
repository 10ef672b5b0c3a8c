"""Folders in MLX's affine codes of 4 bits: the numbers that are meant, or an error."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from packed_folders import CONFIG, words

from monolane.cpu import CpuExecutor
from monolane.errors import CheckpointError, ConfigError
from monolane.model import (
    Blocks,
    Checkpoint,
    Role,
    Weights,
    matrix_formats,
    parse_config,
    read_config,
    repack_folder,
    tensor_specs,
    write_checkpoint,
)
from monolane.ops import Kind
from monolane.reference import ReferenceModel

MLX = {"group_size": 64, "bits": 4, "mode": "affine"}
# As ``quantization_config`` or by MLX's own name.
SCHEMES: dict[str, tuple[str, dict[str, Any]]] = {
    "groups of 64": ("quantization", MLX),
    "groups of 32": ("quantization_config", {"group_size": 32, "bits": 4}),
}
IDS = np.random.default_rng(3).integers(96, size=40)


def packed(
    group: int, shape: tuple[int, int], rng: Any
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """What MLX writes of a random matrix, and the numbers that it means."""
    codes = rng.integers(0, 16, shape)
    rows, columns = shape
    scales = rng.uniform(0.02, 0.06, (rows, columns // group)).astype(ml_dtypes.bfloat16)
    biases = (-7.5 * scales.astype(np.float32)).astype(ml_dtypes.bfloat16)
    wide = [np.repeat(x.astype(np.float32), group, axis=1) for x in (scales, biases)]
    stored = {"weight": words(codes, 4).view(np.uint32), "scales": scales, "biases": biases}
    return stored, codes.astype(np.float32) * wide[0] + wide[1]


def write(folder: Path, name: str, **changes: Any) -> dict[str, np.ndarray]:
    """Write a folder and return its model as floats. Embedding and head are quantised, too."""
    folder.mkdir()
    place, scheme = SCHEMES[name]
    raw = CONFIG | changes
    (folder / "config.json").write_text(json.dumps(raw | {place: scheme}))
    rng = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}
    meant: dict[str, np.ndarray] = {}
    for spec in tensor_specs(parse_config(raw)):
        if spec.role.kind is Kind.MATRIX or spec.role is Role.EMBEDDING:
            shape = spec.shape[0], spec.shape[1]
            stored, meant[spec.name] = packed(scheme["group_size"], shape, rng)
            tensors |= {spec.name.removesuffix("weight") + part: x for part, x in stored.items()}
        else:
            tensors[spec.name] = rng.normal(scale=0.3, size=spec.shape).astype(np.float16)
            meant[spec.name] = tensors[spec.name].astype(np.float32)
    write_checkpoint(folder, tensors.items())
    return meant


def load(folder: Path) -> Weights:
    return Weights.load(read_config(folder), Checkpoint.open(folder))


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("tied", [False, True])
def test_a_packed_model_is_the_float_model_that_is_meant(
    name: str, tied: bool, tmp_path: Path
) -> None:
    meant = write(tmp_path / "packed", name, tie_word_embeddings=tied)
    found = load(tmp_path / "packed")
    assert found.config.stored_dtype == "q4_1"
    assert len(found.quantized) == 2 * 7 + 2
    config = tmp_path / "float" / "config.json"
    config.parent.mkdir()
    raw = CONFIG | {"torch_dtype": "float32", "tie_word_embeddings": tied}
    config.write_text(json.dumps(raw))
    write_checkpoint(config.parent, meant.items())
    plain = load(config.parent)
    for (role, layer), matrix in found.quantized.items():
        assert isinstance(matrix, Blocks)
        place = plain.outer if layer is None else plain.layers[layer]
        np.testing.assert_array_equal(matrix.widened(), place[role], strict=True)
    model = ReferenceModel(plain)
    wanted = model.forward(IDS, model.new_cache())
    executor = CpuExecutor(found, context=64, slots=1)
    logits = executor.logits(0, IDS.tolist())
    # As derived in tests/cpu/test_quantized.py: activations on a grid of max |x| / 127 per group,
    # keys and values in bfloat16, through the 4N + 1 products along the depth.
    share = np.sqrt((4 * 2 + 1) * 32 / 254**2 / 3 + 2 * (2.0**-9) ** 2 / 3)
    assert np.sqrt(((logits - wanted) ** 2).mean()) < share * wanted.std()
    formats = matrix_formats(found.config, Checkpoint.open(tmp_path / "packed"))
    assert formats[Role.UP, 0] == formats[Role.HEAD, None] == "q4_1_panels"


def changed(folder: Path, part: str, array: np.ndarray) -> None:
    """Put another tensor in the place of one part of a layer's matrix."""
    tensors = {name: np.array(x) for name, x in Checkpoint.open(folder).items()}
    name = next(name for name in tensors if name.endswith(f"layers.1.mlp.up_proj.{part}"))
    tensors[name] = array
    write_checkpoint(folder, list(tensors.items()))


SCALE = np.full((192, 2), 0.25, np.float32)


@pytest.mark.parametrize(
    ("part", "array", "message"),
    [
        ("weight", SCALE, r"expected U32 of shape \[192, 16\] .*, got F32 of \[192, 2\]"),
        ("scales", SCALE * 1e-9, "expected numbers that a float16 holds exactly, got 2.4"),
        ("scales", SCALE * np.nan, "expected numbers that a float16 holds exactly, got nan"),
        ("biases", SCALE[:, :1], r"expected F16 or BF16 or F32 of shape \[192, 2\]"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_tensor(
    part: str, array: np.ndarray, message: str, tmp_path: Path
) -> None:
    write(tmp_path / "x", "groups of 64")
    changed(tmp_path / "x", part, array)
    with pytest.raises(CheckpointError, match=rf"up_proj\.{part}': .*{message}"):
        load(tmp_path / "x")


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (MLX | {"bits": 8}, "bits: expected 4, got 8"),
        (MLX | {"mode": "mxfp4"}, "mode: expected 'affine', got 'mxfp4'"),
        (MLX | {"lm_head": {"bits": 6}}, "lm_head: expected false, or nothing"),
        (MLX | {"group_size": 16}, "group_size: expected a multiple of 32"),
    ],
)
def test_other_schemes_are_refused_by_the_field(scheme: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(CONFIG | {"quantization_config": scheme})


def test_a_folder_in_blocks_is_not_rewritten(tmp_path: Path) -> None:
    write(tmp_path / "x", "groups of 64")
    with pytest.raises(ConfigError, match="expected integer codes, .* got Q4_1; run this folder"):
        repack_folder(tmp_path / "x", tmp_path / "y")
