"""Folders that other tools quantised: the model that is meant, in any layout, or an error."""

import json
import logging
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packed_folders import AWQ, CONFIG, COSTLY, CT, GPTQ, SCHEMES, ct, words, write_folder

from monolane.cpu import CpuExecutor
from monolane.errors import CheckpointError, ConfigError
from monolane.model import (
    Checkpoint,
    Quantization,
    Quantized,
    Role,
    SafetensorsFile,
    Weights,
    matrix_formats,
    parse_config,
    quantize_folder,
    read_config,
    repack_folder,
    tensor_specs,
    write_checkpoint,
    write_safetensors,
)
from monolane.model import _quant_foreign_unpack as repack
from monolane.plan import build, cpu, pass_cost
from monolane.reference import ReferenceModel


def write_float(folder: Path, meant: dict[str, np.ndarray], **changes: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | changes | {"torch_dtype": "float32"}))
    write_checkpoint(folder, meant.items())
    return folder


def load(folder: Path) -> Weights:
    return Weights.load(read_config(folder), Checkpoint.open(folder))


def codes_of(weights: Weights) -> dict[tuple[Role, int | None], Quantized]:
    """The quantised matrices, which are ours: none is in a GGUF file's blocks."""
    found = {at: x for at, x in weights.quantized.items() if isinstance(x, Quantized)}
    assert len(found) == len(weights.quantized)
    return found


def oracle(weights: Weights, ids: np.ndarray) -> np.ndarray:
    model = ReferenceModel(weights)
    return model.forward(ids, model.new_cache())


# Tokens that are fed.
IDS = np.random.default_rng(3).integers(96, size=40)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_packed_model_is_the_float_model_that_is_meant(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repack, "CHUNK", 128 * 24)  # so that a matrix takes several chunks
    meant = write_folder(tmp_path / "packed", SCHEMES[name])
    packed, plain = load(tmp_path / "packed"), load(write_float(tmp_path / "float", meant))
    assert len(packed.quantized) == 2 * 7
    for (role, layer), matrix in codes_of(packed).items():
        assert layer is not None
        np.testing.assert_array_equal(matrix.widened(), plain.layers[layer][role], strict=True)
    assert packed.outer[Role.HEAD].dtype == np.float16
    bits = 8 if name in COSTLY or "8" in name or "awq" in name else 4
    assert packed.config.stored_dtype == f"int{bits}"
    wanted = oracle(plain, IDS)
    np.testing.assert_array_equal(oracle(packed, IDS), wanted)
    executor = CpuExecutor(packed, context=64, slots=1)
    assert dict(executor.plan.formats) == {(Role.HEAD, None): "float16"}
    found = executor.logits(0, IDS.tolist())
    # As derived in tests/cpu/test_quantized.py: activations on a grid of max |x| / 127 per group,
    # keys and values in bfloat16, through the 4N + 1 products along the depth.
    share = np.sqrt((4 * 2 + 1) * 32 / 254**2 / 3 + 2 * (2.0**-9) ** 2 / 3)
    assert np.sqrt(((found - wanted) ** 2).mean()) < share * wanted.std()
    assert np.abs(found - wanted).max() > 0


@pytest.mark.parametrize("name", SCHEMES)
def test_a_repacked_folder_loads_from_the_mapping(name: str, tmp_path: Path) -> None:
    meant = write_folder(tmp_path / "packed", SCHEMES[name])
    report = repack_folder(tmp_path / "packed", tmp_path / "ours")
    found = load(tmp_path / "ours")
    assert found.config.quantization == Quantization(
        codes_of(load(tmp_path / "packed"))[Role.Q, 0].bits, ignore=("lm_head",)
    )
    for at, matrix in codes_of(load(tmp_path / "packed")).items():
        ours = codes_of(found)[at]
        np.testing.assert_array_equal(ours.codes, matrix.codes, strict=True)
        np.testing.assert_array_equal(ours.scales, matrix.scales, strict=True)
        assert not ours.codes.flags.owndata
    plain = load(write_float(tmp_path / "float", meant))
    np.testing.assert_array_equal(oracle(found, IDS), oracle(plain, IDS))
    for path, size in (("packed", report.bytes_before), ("ours", report.bytes_after)):
        assert size == sum(x.nbytes for x in Checkpoint.open(tmp_path / path).values())
    assert report.matrices == []
    card = (tmp_path / "ours" / "README.md").read_text()
    assert "and norms, and lm_head, are as in the original.\nThese are the numbers" in card


def test_zero_points_are_said_to_cost_once(tmp_path: Path, caplog: Any) -> None:
    write_folder(tmp_path / "awq", AWQ)
    with caplog.at_level(logging.WARNING, "monolane.model"):
        load(tmp_path / "awq")
    message = "4-bit codes with zero points are read as int8: the same numbers, at about twice"
    assert [x.getMessage() for x in caplog.records] == [f"{tmp_path / 'awq'}: {message} the bytes"]


def test_every_code_and_zero_point() -> None:
    """All 16 x 16 pairs at once, and all 256 codes of 8 bits: none wraps round."""
    codes = np.repeat(np.arange(16), 16)
    zeros = np.tile(np.arange(16), 16)
    difference = (codes.astype(np.uint8) - zeros.astype(np.uint8)).view(np.int8)
    np.testing.assert_array_equal(difference, codes - zeros)
    eight = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal((eight - np.uint8(128)).view(np.int8), np.arange(-128, 128))
    for bits in (4, 8):
        drawn = np.random.default_rng(bits).integers(0, 1 << bits, (5, 64)).astype(np.uint8)
        np.testing.assert_array_equal(repack.unpack(words(drawn, bits), bits), drawn)


def test_biases_of_zeros_are_no_surplus(tmp_path: Path) -> None:
    """As the first GPTQ tools store them, for families that have none."""
    write_folder(tmp_path / "gptq", GPTQ)
    name = "model.layers.1.mlp.gate_proj.bias"
    rewrite(tmp_path / "gptq", **{name: np.zeros(192, np.float16)})
    load(tmp_path / "gptq")
    rewrite(tmp_path / "gptq", **{name: np.full(192, 1e-3, np.float16)})
    with pytest.raises(CheckpointError, match=f"got 1 more: '{name}'"):
        load(tmp_path / "gptq")


def test_zero_points_that_an_older_tool_left_unpacked(tmp_path: Path) -> None:
    meant = write_folder(tmp_path / "ct", ct(symmetric=False))
    path = tmp_path / "ct" / "model.safetensors"
    changes = {}
    for name, array in SafetensorsFile(path).items():
        if name.endswith("weight_zero_point"):
            changes[name] = (repack.unpack(array.T, 4).T.astype(np.int8) - 8).astype(np.int8)
    rewrite(tmp_path / "ct", **changes)
    plain = load(write_float(tmp_path / "float", meant))
    np.testing.assert_array_equal(oracle(load(tmp_path / "ct"), IDS), oracle(plain, IDS))


def rewrite(folder: Path, **changes: np.ndarray | None) -> None:
    """Write the weights again, some replaced or added (an array) or dropped (None)."""
    path = folder / "model.safetensors"
    tensors = {name: np.array(array) for name, array in SafetensorsFile(path).items()} | changes
    write_safetensors(path, [(name, array) for name, array in tensors.items() if array is not None])


Q = "model.layers.0.self_attn.q_proj"
ARANGE = np.arange(128, dtype=np.int32)


@pytest.mark.parametrize(
    ("scheme", "changes", "message"),
    [
        (CT, {f"{Q}.weight_scale": None}, f"1 are missing: '{Q}.weight_scale'"),
        (CT, {f"{Q}.weight_packed": None}, f"1 are missing: '{Q}.weight_packed'"),
        (CT, {f"{Q}.weight": np.zeros((128, 128), np.float16)}, f"got 1 more: '{Q}.weight'"),
        (CT, {f"{Q}.weight_zero_point": np.zeros((128, 4), np.int8)}, "got 1 more: '.*zero_point'"),
        (
            CT,
            {f"{Q}.weight_packed": np.zeros((128, 15), np.int32)},
            rf"'{Q}.weight_packed': expected shape \[128, 16\] from config.json, got \[128, 15\]",
        ),
        (
            CT,
            {f"{Q}.weight_packed": np.zeros((128, 16), np.int64)},
            f"model.safetensors: tensor '{Q}.weight_packed': expected I32, got I64",
        ),
        (
            CT,
            {f"{Q}.weight_scale": np.ones((128, 2), np.float16)},
            r"weight_scale': expected shape \[128, 4\] from config.json, got \[128, 2\]",
        ),
        (
            CT,
            {f"{Q}.weight_scale": np.full((128, 4), 0.1, np.float32)},
            f"'{Q}.weight_scale': expected scales that a float16 holds exactly, got 0.1000000",
        ),
        (CT, {f"{Q}.weight_scale": np.full((128, 4), 1e-9, np.float32)}, "exactly, got 9.9999"),
        (CT, {f"{Q}.weight_scale": np.full((128, 4), 1e9, np.float32)}, "exactly, got 1e.09"),
        (CT, {f"{Q}.weight_scale": np.full((128, 4), np.nan, np.float16)}, "exactly, got nan"),
        (CT, {f"{Q}.weight_shape": np.array([128, 96])}, r"expected \[128, 128\] .* \[128, 96"),
        (
            CT,
            {f"{Q}.weight_g_idx": ARANGE[::-1] // 32},
            r"weight_g_idx': expected column k in group k // 32, got another order \(act-order",
        ),
        (
            GPTQ,
            {f"{Q}.g_idx": np.roll(ARANGE // 64, 1)},
            f"'{Q}.g_idx': expected column k in group k // 64, got another order .act-order",
        ),
        (GPTQ, {f"{Q}.g_idx": ARANGE[:64]}, r"g_idx': expected shape \[128\] from"),
        (
            GPTQ,
            {f"{Q}.qzeros": np.full((2, 16), 0x77777767, np.int32)},
            f"{Q}.weight: expected the zero point 8 everywhere, since .* symmetric, got 7",
        ),
        (GPTQ, {f"{Q}.qweight": np.zeros((128, 16), np.int32)}, r"expected shape \[16, 128\] from"),
        (AWQ, {f"{Q}.qweight": np.zeros((16, 128), np.int32)}, r"expected shape \[128, 16\] from"),
        (AWQ, {f"{Q}.qzeros": None}, f"1 are missing: '{Q}.qzeros'"),
        (AWQ, {f"{Q}.g_idx": ARANGE // 64}, f"got 1 more: '{Q}.g_idx'"),
        (
            ct("int-quantized", num_bits=8, strategy="channel", group_size=None),
            {f"{Q}.weight_scale": None},
            f"'{Q}.weight': expected one of BF16, F16, F32, got I8",
        ),
    ],
)  # fmt: skip
def test_tensors_that_are_not_the_schemes(
    scheme: Any, changes: Any, message: str, tmp_path: Path
) -> None:
    write_folder(tmp_path / "m", scheme)
    rewrite(tmp_path / "m", **changes)
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path / "m")
    with pytest.raises(CheckpointError, match=message):
        repack_folder(tmp_path / "m", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_groups_that_are_not_whole(tmp_path: Path) -> None:
    """192 columns of down_proj are one group of 128 and a half."""
    scheme = GPTQ | {"group_size": 64}
    write_folder(tmp_path / "m", scheme)
    raw = json.loads((tmp_path / "m" / "config.json").read_text())
    raw["quantization_config"]["group_size"] = 128
    (tmp_path / "m" / "config.json").write_text(json.dumps(raw))
    rewrite(
        tmp_path / "m",
        **{
            name: None
            for name in SafetensorsFile(tmp_path / "m" / "model.safetensors")
            if name.endswith("g_idx")
        },
    )
    with pytest.raises(CheckpointError, match=r"expected (columns|shape)"):
        load(tmp_path / "m")
    message = (
        r"down_proj.weight: expected columns that are a multiple of group_size \(128\), got 192"
    )
    config = parse_config(raw)
    down = next(x for x in tensor_specs(config) if x.role is Role.DOWN)
    assert config.quantization is not None
    assert config.quantization.packing is not None
    with pytest.raises(CheckpointError, match=message):
        repack.PackedMatrix(
            config.quantization.packing, down, Checkpoint.open(tmp_path / "m")
        ).read()


def test_config_and_weights_of_different_tools(tmp_path: Path) -> None:
    meant = write_folder(tmp_path / "m", GPTQ)
    raw = json.loads((tmp_path / "m" / "config.json").read_text())
    plain = write_float(tmp_path / "float", meant)
    (plain / "config.json").write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match="expected matrices packed by gptq, .* got none"):
        load(plain)


def test_what_is_not_requantised_or_repacked(tmp_path: Path) -> None:
    meant = write_folder(tmp_path / "m", GPTQ)
    with pytest.raises(ConfigError, match=r"expected float weights, got int4.*--dtype auto"):
        quantize_folder(tmp_path / "m", tmp_path / "q", Quantization(8))
    plain = write_float(tmp_path / "float", meant)
    with pytest.raises(ConfigError, match="expected a model that another tool quantised, got one"):
        repack_folder(plain, tmp_path / "q")
    repack_folder(tmp_path / "m", tmp_path / "q")
    with pytest.raises(ConfigError, match=r"quantised, got one in int4, as monolane reads it"):
        repack_folder(tmp_path / "q", tmp_path / "again")


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    meant = write_folder(tmp_path / "m", AWQ, tie_word_embeddings=True)
    plain = load(write_float(tmp_path / "float", meant, tie_word_embeddings=True))
    np.testing.assert_array_equal(oracle(load(tmp_path / "m"), IDS), oracle(plain, IDS))
    repack_folder(tmp_path / "m", tmp_path / "ours")
    np.testing.assert_array_equal(oracle(load(tmp_path / "ours"), IDS), oracle(plain, IDS))
    packed, ours = (
        CpuExecutor(load(tmp_path / name), context=64, slots=1).logits(0, IDS.tolist())
        for name in ("m", "ours")
    )
    np.testing.assert_array_equal(ours, packed)


def test_a_matrix_is_repacked_a_few_rows_at_a_time(tmp_path: Path) -> None:
    big = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 1}
    config = parse_config(CONFIG | big | {"quantization_config": GPTQ})
    down = next(x for x in tensor_specs(config) if x.role is Role.DOWN)
    name = down.name.removesuffix("weight")
    tensors: list[tuple[str, np.ndarray]] = [
        (name + "qweight", np.full((8192 // 8, 2048), 0x12345678, np.int32)),
        (name + "qzeros", np.full((8192 // 64, 2048 // 8), 0x77777777, np.int32)),
        (name + "scales", np.ones((8192 // 64, 2048), np.float16)),
    ]
    write_checkpoint(tmp_path, tensors)
    assert config.quantization is not None
    assert config.quantization.packing is not None
    matrix = repack.PackedMatrix(config.quantization.packing, down, Checkpoint.open(tmp_path))
    tracemalloc.start()
    found = matrix.read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The result; of each chunk of CHUNK codes a few forms, a byte each; all zero points twice.
    extra = 4 * repack.CHUNK + 2 * 2048 * 8192 // 64
    assert peak < found.codes.nbytes + found.scales.nbytes + extra
    assert extra < 2048 * 8192 / 2  # not even the codes of the matrix, widened
    np.testing.assert_array_equal(found.widened()[7, :8], np.arange(8, 0, -1) - 8)


@pytest.mark.parametrize("tied", [False, True])
def test_a_folder_says_how_each_matrix_is_multiplied(tmp_path: Path, tied: bool) -> None:
    """As the CPU backend does: the head is float16, all else int4."""
    write_folder(tmp_path / "m", SCHEMES["ct int4, groups of 32"], tie_word_embeddings=tied)
    config = read_config(tmp_path / "m")
    formats = matrix_formats(config, Checkpoint.open(tmp_path / "m"))
    assert formats[Role.HEAD, None] == "float16"
    assert set(formats.values()) == {"float16", "int4"}
    plan = build(config, cpu(1), "int4", max_width=1, context=8, formats=formats)
    executor = CpuExecutor(load(tmp_path / "m"), context=8, slots=1, workers=1)
    assert pass_cost(plan, 1).bytes == executor.bytes_per_token(8)


def test_against_the_library_compressed_tensors() -> None:
    """The tool itself packs, where it is installed: the layout above is then no reading of ours."""
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    torch = pytest.importorskip("torch")
    for bits in (4, 8):
        half = 1 << (bits - 1)
        codes = np.random.default_rng(bits).integers(-half, half, (24, 96)).astype(np.int8)
        packed = helpers.pack_to_int32(torch.from_numpy(codes), bits).numpy()
        np.testing.assert_array_equal(packed, words(codes.astype(int) + half, bits))
        rows = helpers.pack_to_int32(torch.from_numpy(codes), bits, packed_dim=0).numpy()
        np.testing.assert_array_equal(rows, words(codes.T.astype(int) + half, bits).T)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:You passed `quantization_config`:UserWarning")
@pytest.mark.parametrize("name", [x for x in SCHEMES if x.startswith("ct ")])
def test_transformers_reads_the_same_from_these_folders(name: str, tmp_path: Path) -> None:
    """With the library compressed-tensors, which loads what is written here as its own."""
    pytest.importorskip("compressed_tensors")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    write_folder(tmp_path / "m", SCHEMES[name])
    scales = {  # in float32, since the library rounds each weight to the dtype of its scale
        key: array.astype(np.float32)
        for key, array in SafetensorsFile(tmp_path / "m" / "model.safetensors").items()
        if key.endswith("weight_scale")
    }
    rewrite(tmp_path / "m", **scales)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "m",
        dtype=torch.float32,
        quantization_config=transformers.CompressedTensorsConfig(dequantize=True),
    ).eval()
    with torch.no_grad():
        wanted = theirs(torch.from_numpy(IDS)[None]).logits[0].numpy()
    found = oracle(load(tmp_path / "m"), IDS)
    # As in tests/engine/test_dense.py: 9 products in a row whose sums have at most 192 terms, in
    # two evaluations, 6 times that for the largest; angles of up to 40 radians in 2 layers.
    sums, angles = 6 * np.sqrt(2 * 9 * 192), 6 * 3 * len(IDS) * np.sqrt(2)
    assert np.abs(found - wanted).max() < (sums + angles) * 2.0**-24 * wanted.std()
