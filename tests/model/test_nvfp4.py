"""Folders in NVFP4, as compressed-tensors and ModelOpt write them: the numbers, or an error."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from packed_folders import CONFIG

from monolane import Engine
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

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
ACTIVATIONS = {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": "local"}
WEIGHTS = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
COMPRESSED: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "ignore": ["lm_head"],
    "config_groups": {"group_0": {"weights": WEIGHTS, "input_activations": ACTIVATIONS}},
}
MODELOPT: dict[str, Any] = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "group_size": 16,
    "ignore": ["lm_head"],
}
SCHEMES = {"compressed-tensors": COMPRESSED, "modelopt": MODELOPT}
PLAIN = CONFIG | {"torch_dtype": "float32"}
IDS = np.random.default_rng(3).integers(96, size=40)


def packed(scheme: str, shape: tuple[int, int], rng: Any) -> tuple[dict[str, Any], np.ndarray]:
    """What a tool writes of a random matrix, and the numbers that it means."""
    rows, columns = shape
    codes = rng.integers(0, 16, shape)
    scales = rng.uniform(50, 448, (rows, columns // 16)).astype(ml_dtypes.float8_e4m3fn)
    factor = np.float32(rng.uniform(1e-4, 3e-4))
    words = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
    if scheme == "modelopt":
        stored = {"weight": words, "weight_scale": scales, "weight_scale_2": np.array(factor)}
        stored |= {"input_scale": np.array(np.float32(0.3)), "k_scale": np.array(np.float32(2))}
    else:
        divisor = np.float32(1) / factor
        factor = np.float32(1) / divisor
        stored = {"weight_packed": words, "weight_scale": scales}
        stored |= {"weight_global_scale": divisor[None], "input_global_scale": divisor[None]}
    wide = np.repeat(scales.astype(np.float64), 16, axis=1)
    return stored, (E2M1[codes] * wide * np.float64(factor)).astype(np.float32)


def write(folder: Path, scheme: str) -> dict[str, np.ndarray]:
    """Write a folder and return its model as floats."""
    folder.mkdir()
    raw = PLAIN | {"tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(raw | {"quantization_config": SCHEMES[scheme]}))
    rng = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}
    meant: dict[str, np.ndarray] = {}
    for spec in tensor_specs(parse_config(raw)):
        if spec.role.kind is Kind.MATRIX and spec.role is not Role.HEAD:
            stored, meant[spec.name] = packed(scheme, (spec.shape[0], spec.shape[1]), rng)
            tensors |= {spec.name.removesuffix("weight") + part: x for part, x in stored.items()}
        else:
            tensors[spec.name] = rng.normal(scale=0.1, size=spec.shape).astype(np.float32)
            meant[spec.name] = tensors[spec.name]
    write_checkpoint(folder, tensors.items())
    return meant


def load(folder: Path) -> Weights:
    return Weights.load(read_config(folder), Checkpoint.open(folder))


# As derived in tests/cpu/test_quantized.py: activations on a grid of max |x| / 127 per group, keys
# and values in bfloat16, through the 4N + 1 products along the depth.
SHARE = np.sqrt((4 * 2 + 1) * 32 / 254**2 / 3 + 2 * (2.0**-9) ** 2 / 3)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_packed_model_is_the_float_model_that_is_meant(scheme: str, tmp_path: Path) -> None:
    meant = write(tmp_path / "packed", scheme)
    found = load(tmp_path / "packed")
    assert found.config.stored_dtype == "nvfp4"
    assert len(found.quantized) == 2 * 7
    config = tmp_path / "float" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(PLAIN | {"tie_word_embeddings": False}))
    write_checkpoint(config.parent, meant.items())
    plain = load(config.parent)
    factors = set()
    for (role, layer), matrix in found.quantized.items():
        assert isinstance(matrix, Blocks)
        assert layer is not None
        factors.add(matrix.factor)
        np.testing.assert_array_equal(matrix.widened(), plain.layers[layer][role], strict=True)
    assert len(factors) == len(found.quantized)  # each has its own
    model = ReferenceModel(plain)
    wanted = model.forward(IDS, model.new_cache())
    logits = CpuExecutor(found, context=64, slots=1).logits(0, IDS.tolist())
    assert np.sqrt(((logits - wanted) ** 2).mean()) < SHARE * wanted.std()
    formats = matrix_formats(found.config, Checkpoint.open(tmp_path / "packed"))
    assert (formats[Role.UP, 0], formats[Role.HEAD, None]) == ("nvfp4_panels", "float32")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_engine_loads_it_as_it_is(scheme: str, tmp_path: Path) -> None:
    write(tmp_path / "x", scheme)
    logits = {}
    for backend in ("reference", "cpu"):
        with Engine.load(tmp_path / "x", backend) as engine:
            logits[backend] = engine.logits(IDS.tolist())
    off = np.sqrt(((logits["cpu"] - logits["reference"]) ** 2).mean())
    assert off < SHARE * logits["reference"].std()


def changed(folder: Path, part: str, array: np.ndarray) -> None:
    """Put another tensor in the place of one part of a layer's matrix."""
    tensors = {name: np.array(x) for name, x in Checkpoint.open(folder).items()}
    tensors[f"model.layers.1.mlp.up_proj.{part}"] = array
    write_checkpoint(folder, list(tensors.items()))


@pytest.mark.parametrize(
    ("part", "array", "message"),
    [
        ("weight_packed", np.zeros((192, 32), np.uint8), r"U8 of shape \[192, 64\] .*\[192, 32\]"),
        ("weight_scale", np.zeros((192, 8), np.float16), r"F8_E4M3 of shape .*, got F16 of \[192"),
        ("weight_scale", np.full((192, 8), 0x7F, np.uint8).view(ml_dtypes.float8_e4m3fn),
         "expected scales of zero and more, got the code 0x7f"),
        ("weight_scale", np.full((192, 8), -1, ml_dtypes.float8_e4m3fn), "got the code 0xb8"),
        ("weight_global_scale", np.zeros(1, np.float32), "expected a number above zero, got 0"),
        ("weight_global_scale", np.full(1, np.nan, np.float32), "a number above zero, got nan"),
        ("weight_global_scale", np.ones(2, np.float32), r"F32 of shape \[1\] or \[\] .* of \[2\]"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_its_tensor(
    part: str, array: np.ndarray, message: str, tmp_path: Path
) -> None:
    write(tmp_path / "x", "compressed-tensors")
    changed(tmp_path / "x", part, array)
    with pytest.raises(CheckpointError, match=rf"up_proj\.{part}'.*{message}"):
        load(tmp_path / "x")


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (MODELOPT | {"quant_algo": "FP8"}, "quant_algo: expected 'NVFP4', got 'FP8'"),
        (MODELOPT | {"group_size": 32}, "group_size: expected 16, got 32"),
        (COMPRESSED | {"config_groups": {"g": {"weights": WEIGHTS | {"num_bits": 8}}}},
         "num_bits: expected 4, got 8"),
        (COMPRESSED | {"config_groups": {"g": {"weights": WEIGHTS | {"type": "int"}}}},
         "type: expected .*float.*, got .*int"),
    ],
)  # fmt: skip
def test_other_schemes_are_refused_by_the_field(scheme: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(CONFIG | {"quantization_config": scheme})


def test_a_folder_in_blocks_is_not_rewritten(tmp_path: Path) -> None:
    write(tmp_path / "x", "modelopt")
    with pytest.raises(ConfigError, match="expected integer codes, .* got NVFP4; run this folder"):
        repack_folder(tmp_path / "x", tmp_path / "y")
