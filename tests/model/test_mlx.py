"""Folders in MLX's affine codes: the numbers that are meant, or an error."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from packed_folders import CONFIG

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
    "2 bits": ("quantization", MLX | {"bits": 2}),
    "3 bits": ("quantization", MLX | {"bits": 3, "group_size": 32}),
    "5 bits": ("quantization", MLX | {"bits": 5}),
    "8 bits": ("quantization", MLX | {"bits": 8}),
}
FORMATS = {2: "q4_1", 3: "q4_1", 4: "q4_1", 5: "q5_1", 8: "q8_0"}
# Of single matrices: what config.json says of each, and the bits that it then has.
OVERRIDES = {
    "model.layers.0.mlp.down_proj": {"group_size": 32, "bits": 5},
    "model.layers.1.mlp.up_proj": {"group_size": 64, "bits": 8},
    "model.layers.1.self_attn.q_proj": False,
    "model.embed_tokens": {"group_size": 32, "bits": 8},
}
IDS = np.random.default_rng(3).integers(96, size=40)


def stream(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes [R, K] in words of 32 bits, the first in the lowest bits."""
    single = np.unpackbits(codes.astype(np.uint8)[..., None], axis=-1, bitorder="little")
    packed = np.packbits(single[..., :bits].reshape(len(codes), -1), axis=-1, bitorder="little")
    return packed.view(np.uint32)


def packed(
    group: int, bits: int, shape: tuple[int, int], rng: Any
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """What MLX writes of a random matrix, and the numbers that it means."""
    rows, columns = shape
    codes = rng.integers(0, 1 << bits, shape)
    scales = rng.uniform(0.3, 0.9, (rows, columns // group)).astype(ml_dtypes.bfloat16)
    scales = (scales.astype(np.float32) / (1 << bits)).astype(ml_dtypes.bfloat16)
    biases = ((0.5 - (1 << (bits - 1))) * scales.astype(np.float32)).astype(ml_dtypes.bfloat16)
    if bits == 8:  # whole numbers of scales, which float32 holds: 100 to 150
        zeros = rng.integers(100, 151, scales.shape)
        biases = (-zeros * scales.astype(np.float64)).astype(np.float32)
        each = np.repeat(zeros, group, axis=1)
        codes = np.clip(codes, each - 128, np.minimum(each + 127, 255))
    wide = [np.repeat(x.astype(np.float32), group, axis=1) for x in (scales, biases)]
    stored = {"weight": stream(codes, bits), "scales": scales, "biases": biases}
    return stored, codes.astype(np.float32) * wide[0] + wide[1]


def write(
    folder: Path, name: str, own: dict[str, Any] | None = None, **changes: Any
) -> dict[str, np.ndarray]:
    """Write a folder and return its model as floats. Embedding and head are quantised, too."""
    folder.mkdir()
    place, scheme = SCHEMES[name]
    scheme = scheme | (own or {})
    raw = CONFIG | changes
    (folder / "config.json").write_text(json.dumps(raw | {place: scheme}))
    rng = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}
    meant: dict[str, np.ndarray] = {}
    for spec in tensor_specs(parse_config(raw)):
        said = scheme.get(spec.name.removesuffix(".weight"), scheme)
        kinds = (Kind.MATRIX, Kind.LOOKUP, Kind.KEPT)
        if said is not False and spec.role.kind in kinds:
            shape = spec.shape[0], spec.shape[1]
            stored, meant[spec.name] = packed(said["group_size"], said["bits"], shape, rng)
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
    bits = SCHEMES[name][1]["bits"]
    assert found.config.stored_dtype == FORMATS[bits]
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
    assert formats[Role.UP, 0] == formats[Role.HEAD, None] == f"{FORMATS[bits]}_panels"


def test_single_matrices_may_have_bits_of_their_own(tmp_path: Path) -> None:
    meant = write(tmp_path / "packed", "groups of 64", OVERRIDES, tie_word_embeddings=True)
    found = load(tmp_path / "packed")
    held = {place: x.format for place, x in found.quantized.items() if isinstance(x, Blocks)}
    assert held[Role.DOWN, 0] == "q5_1"
    assert held[Role.UP, 1] == held[Role.EMBEDDING, None] == held[Role.HEAD, None] == "q8_0"
    assert held[Role.UP, 0] == held[Role.K, 1] == "q4_1"
    assert (Role.Q, 1) not in held
    for (role, layer), name in (
        ((Role.DOWN, 0), "model.layers.0.mlp.down_proj.weight"),
        ((Role.UP, 1), "model.layers.1.mlp.up_proj.weight"),
    ):
        wide = found.quantized[role, layer].widened()
        np.testing.assert_array_equal(wide.reshape(meant[name].shape), meant[name])
    formats = matrix_formats(found.config, Checkpoint.open(tmp_path / "packed"))
    assert formats[Role.DOWN, 0] == "q5_1_panels"
    assert formats[Role.UP, 1] == formats[Role.HEAD, None] == "q8_0_panels"
    assert formats[Role.Q, 1] == "float16"
    wanted = ReferenceModel(found)
    logits = wanted.forward(IDS, wanted.new_cache())
    executor = CpuExecutor(found, context=64, slots=1)
    share = np.sqrt((4 * 2 + 1) * 32 / 254**2 / 3 + 2 * (2.0**-9) ** 2 / 3)  # as above
    assert np.sqrt(((executor.logits(0, IDS.tolist()) - logits) ** 2).mean()) < share * logits.std()


MIXTURE = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "head_dim": 32,
}


def test_a_router_of_8_bits_is_widened_to_floats(tmp_path: Path) -> None:
    """As MLX's folders of mixtures in 4 bits have it; its biases are whatever they are."""
    own = {f"model.layers.{i}.mlp.gate": {"group_size": 64, "bits": 8} for i in range(2)}
    meant = write(tmp_path / "packed", "groups of 64", own, **MIXTURE)
    found = load(tmp_path / "packed")
    for i in range(2):
        router = found.layers[i][Role.ROUTER]
        assert router.dtype == np.float32
        name = f"model.layers.{i}.mlp.gate.weight"
        np.testing.assert_array_equal(router.reshape(meant[name].shape), meant[name])
    assert {x.format for x in found.experts[Role.EXPERT_UP, 0] if isinstance(x, Blocks)} == {"q4_1"}


def test_8_bits_that_no_blocks_hold_are_refused(tmp_path: Path) -> None:
    for part, change, message in (
        ("biases", 0.01, r"up_proj\.biases': .* biases that are a whole number of scales, got"),
        ("weight", 0, r"up_proj\.weight': .* codes from -128 to 127 less .*, got (-|1[3-5])"),
    ):
        folder = tmp_path / part
        write(folder, "8 bits")
        name = f"model.layers.1.mlp.up_proj.{part}"
        stored = np.array(Checkpoint.open(folder)[name])
        if part == "biases":
            stored[0, 0] += change
        else:
            stored[0] = 0xFF00FF00
        changed(folder, part, stored)
        with pytest.raises(CheckpointError, match=message + ".*take the folder in 4 bits"):
            load(folder)


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
        (MLX | {"bits": 6}, "bits: expected 2 or 3 or 4 or 5 or 8, got 6"),
        (MLX | {"mode": "mxfp4"}, "mode: expected 'affine', got 'mxfp4'"),
        (MLX | {"lm_head": {"bits": 6}}, r"lm_head: bits: expected 2 or 3 .*, got 6"),
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
