"""Folders in 8-bit floats with scales of blocks: what each code means, and what is refused."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from monolane.errors import CheckpointError, ConfigError
from monolane.model import Checkpoint, Quantization, parse_config, quantize_folder
from monolane.model import _float8 as float8
from monolane.model._checkpoint import Cut
from monolane.model._float8 import MEANING, Float8
from monolane.model._safetensors import write_safetensors

CODES = np.dtype(ml_dtypes.float8_e4m3fn)
SCHEME: dict[str, Any] = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 64,
    "quantization_config": SCHEME,
}


def meaning(code: int) -> float:
    """E4M3 by its definition: sign, exponent with bias 7, mantissa of three bits."""
    sign, exponent, mantissa = -1.0 if code & 128 else 1.0, code >> 3 & 15, code & 7
    if (exponent, mantissa) == (15, 7):
        return float("nan")
    return sign * (
        mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    )


def draw(rows: int, columns: int, block: tuple[int, int], dtype: Any = np.float32) -> Any:
    """Random codes, all of them numbers, and scales of their blocks."""
    rng = np.random.default_rng(rows)
    codes = rng.integers(256, size=(rows, columns), dtype=np.uint8)
    codes[(codes & 127) == 127] = 0
    grid = -(-rows // block[0]), -(-columns // block[1])
    scales = rng.lognormal(-6, 2, size=grid) * rng.choice([-1, 1], size=grid)
    return codes.view(CODES), scales.astype(dtype)


def test_every_code_means_what_the_format_says() -> None:
    wanted = np.array([meaning(code) for code in range(256)], np.float32)
    np.testing.assert_array_equal(MEANING, wanted)
    assert np.flatnonzero(np.isnan(MEANING)).tolist() == [0x7F, 0xFF]
    assert np.nanmax(MEANING) == float8.LARGEST
    torch = pytest.importorskip("torch")
    theirs = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(MEANING, theirs)
    number = ~np.isnan(MEANING)
    np.testing.assert_array_equal(np.signbit(MEANING[number]), np.signbit(theirs[number]))


@pytest.mark.parametrize("block", [(128, 128), (16, 24), (1, 200), (300, 1)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_weight_is_its_code_times_the_scale_of_its_block(
    block: tuple[int, int], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes that no block divides, taken in parts that no block divides."""
    monkeypatch.setattr(float8, "CHUNK", 1000)
    codes, scales = draw(131, 257, block)
    scales = np.clip(scales, -100, 100)
    found = Float8(block, dtype).widen("x", codes, scales)
    assert found.dtype == np.dtype(dtype)
    by_weight = scales[np.arange(131)[:, None] // block[0], np.arange(257) // block[1]]
    product = MEANING[codes.view(np.uint8)] * by_weight
    np.testing.assert_array_equal(found, product.astype(np.dtype(dtype)))
    exact = MEANING[codes.view(np.uint8)].astype(np.float64) * by_weight
    if dtype != "float16":  # which has few small numbers
        # Half a unit in the last place of each rounding: the product to 24 bits, then to 8.
        bound = (1 + 2.0**-24) * (1 + (2.0**-8 if dtype == "bfloat16" else 0)) - 1
        assert (np.abs(found.astype(np.float64) - exact) <= bound * np.abs(exact)).all()
        assert (found.astype(np.float64) != exact).any()


def test_powers_of_two_as_scales_are_exact() -> None:
    codes = np.arange(256, dtype=np.uint8)[MEANING == MEANING].reshape(2, 127).view(CODES)
    found = Float8((1, 127), "bfloat16").widen("x", codes, np.array([[2.0**-9], [4]], np.float32))
    wanted = MEANING[codes.view(np.uint8)] * np.array([[2.0**-9], [4]], np.float32)
    np.testing.assert_array_equal(found.astype(np.float32), wanted)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])  # DeepSeek's; Qwen3's
def test_numbers_are_those_of_transformers(dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers.integrations.finegrained_fp8")
    codes, scales = draw(256, 384, (128, 128), dtype)
    found = Float8((128, 128), "bfloat16").widen("x", codes, scales)
    wanted = theirs.Fp8Dequantize(None)._dequantize_one(
        torch.from_numpy(codes.view(np.uint8)).view(torch.float8_e4m3fn),
        torch.from_numpy(scales.astype(np.float32)),
        torch.bfloat16,
    )
    np.testing.assert_array_equal(found.astype(np.float32), wanted.float().numpy())


def test_one_matrix_takes_some_megabytes_beside_itself() -> None:
    codes, scales = draw(4096, 4096, (128, 128))
    tracemalloc.start()
    try:
        found = Float8((128, 128), "bfloat16").widen("x", codes, scales)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.nbytes <= peak < found.nbytes + 16 * float8.CHUNK  # in codes at a time


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_a_code_that_is_no_number_is_refused(code: int) -> None:
    codes, scales = draw(40, 50, (16, 16))
    codes.view(np.uint8)[33, 7] = code
    with pytest.raises(CheckpointError, match=f"^y: .* got the code {code:#x} .* row 33, column 7"):
        Float8((16, 16), "bfloat16").widen("y", codes, scales)


@pytest.mark.parametrize("scale", [np.inf, -np.inf, np.nan, 1e37])
def test_scales_that_make_no_number_are_refused(scale: float) -> None:
    codes, scales = draw(40, 50, (16, 16))
    scales[1, 2] = scale
    with pytest.raises(CheckpointError, match=r"^y: expected scales of at most 7.\d+e\+35"):
        Float8((16, 16), "bfloat16").widen("y", codes, scales)


def test_scales_of_other_blocks_are_refused() -> None:
    codes, scales = draw(40, 50, (16, 16))
    with pytest.raises(CheckpointError, match=r"^y: expected scales of shape \[2, 4\] beside it"):
        Float8((32, 16), "bfloat16").widen("y", codes, scales)
    with pytest.raises(CheckpointError, match=r"^y: .* got \[3, 4\] in F64"):
        Float8((16, 16), "bfloat16").widen("y", codes, scales.astype(np.float64))
    with pytest.raises(CheckpointError, match="^y: expected a matrix of 8-bit floats"):
        Float8((16, 16), "bfloat16").widen("y", codes[None], scales)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fmt": "e5m2"}, "fmt: expected one of 'e4m3', 'float8_e4m3fn', got 'e5m2'"),
        ({"activation_scheme": "some"}, "activation_scheme: expected one of 'dynamic', 'static'"),
        ({"weight_block_size": 128}, "weight_block_size: expected null, or the rows and the"),
        ({"weight_block_size": [128]}, "weight_block_size: expected null, or the rows and the"),
        ({"weight_block_size": [0, 128]}, "weight_block_size: expected null, or the rows and the"),
        ({"weight_block_size": [128.0, 1]}, "weight_block_size: expected null, or the rows"),
    ],
)
def test_other_schemes_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^config.json: quantization_config: {message}"):
        parse_config(CONFIG | {"quantization_config": SCHEME | changes})


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_matrix_may_have_one_scale(shape: tuple[int, ...], tmp_path: Path) -> None:
    """As Ministral 3 and Mistral 4 have it, with a scale of what the matrix meets, not read."""
    scheme = SCHEME | {"weight_block_size": None, "activation_scheme": "static"}
    said = CONFIG | {"quantization_config": scheme, "dtype": "float32"}
    (tmp_path / "config.json").write_text(json.dumps(said))
    codes, _ = draw(9, 20, (128, 128))
    one = np.full(shape, 0.3, np.float32)
    tensors = {"a.weight": codes, "a.weight_scale_inv": one, "a.activation_scale": one}
    stack = {"e": np.stack([codes, codes]), "e_scale_inv": one, "e_activation_scale": one}
    write_safetensors(tmp_path / "model.safetensors", list((tensors | stack).items()))
    checkpoint = Checkpoint.open(tmp_path)
    assert sorted(checkpoint) == ["a.weight", "e"]
    wanted = codes.astype(np.float32) * np.float32(0.3)
    np.testing.assert_array_equal(checkpoint["a.weight"], wanted)
    cut = checkpoint.with_cuts({"e.1": Cut("e", 1, slice(2, 5))})
    np.testing.assert_array_equal(cut["e.1"], wanted[2:5])
    wrong = {"a.weight_scale_inv": np.ones((3, 1), np.float32)}
    write_safetensors(tmp_path / "model.safetensors", list((tensors | wrong).items()))
    with pytest.raises(CheckpointError, match=r"expected scales of shape \[1, 1\] beside it"):
        Checkpoint.open(tmp_path)["a.weight"]


def test_experts_in_one_tensor_have_scales_of_their_own(tmp_path: Path) -> None:
    said = CONFIG | {"quantization_config": SCHEME | {"weight_block_size": [4, 8]}}
    (tmp_path / "config.json").write_text(json.dumps(said))
    each = [draw(rows, 20, (4, 8)) for rows in (9, 10)]
    codes = np.stack([codes[:9] for codes, _ in each])
    scales = np.stack([scales for _, scales in each])
    tensors = {"e": codes, "e_scale_inv": scales}
    write_safetensors(tmp_path / "model.safetensors", list(tensors.items()))
    found = Checkpoint.open(tmp_path).with_cuts({"e.1": Cut("e", 1, slice(2, 5))})
    wanted = Float8((4, 8), "bfloat16").widen("e", codes[1], scales[1])
    np.testing.assert_array_equal(found["e.1"], wanted[2:5])
    few = {"e": codes, "e_scale_inv": scales[:1]}
    write_safetensors(tmp_path / "model.safetensors", list(few.items()))
    found = Checkpoint.open(tmp_path).with_cuts({"e.1": Cut("e", 1, slice(2, 5))})
    with pytest.raises(CheckpointError, match="expected scales of shape"):
        found["e.1"]


def test_the_scheme_of_a_text_is_in_its_own_config() -> None:
    """As Kimi-K2.5 has it."""
    text = {name: x for name, x in CONFIG.items() if name not in ("model_type", "num_key_value")}
    weights = {"num_bits": 4, "group_size": 32, "strategy": "group", "symmetric": True}
    scheme = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    said = {"model_type": "kimi_k25", "text_config": text | {"quantization_config": scheme}}
    found = parse_config(said).quantization
    assert found is not None
    assert found.dtype == "int4"
    plain = {"model_type": "kimi_k25", "text_config": text | {"quantization_config": None}}
    assert parse_config(plain).quantization is None


def test_experts_of_four_bits_and_scales_that_are_powers_of_two(tmp_path: Path) -> None:
    """As DeepSeek-V4 has both: "scale" is in the place of "weight"."""
    said = CONFIG | {"quantization_config": SCHEME | {"weight_block_size": [4, 8]}}
    (tmp_path / "config.json").write_text(json.dumps(said))
    e8m0 = np.dtype(ml_dtypes.float8_e8m0fnu)
    rng = np.random.default_rng(0)
    pairs = np.arange(256, dtype=np.uint8)[rng.permutation(256)].reshape(8, 32).view(np.int8)
    powers = np.exp2(rng.integers(-9, 9, size=(8, 2)).astype(np.float32)).astype(e8m0)
    codes, _ = draw(9, 20, (4, 8))
    scales = np.exp2(rng.integers(-9, 9, size=(3, 3)).astype(np.float32)).astype(e8m0)
    tensors = {"w1.weight": pairs, "w1.scale": powers, "wq.weight": codes, "wq.scale": scales}
    write_safetensors(tmp_path / "model.safetensors", list(tensors.items()))
    checkpoint = Checkpoint.open(tmp_path)
    assert sorted(checkpoint) == ["w1.weight", "wq.weight"]
    assert (checkpoint.shape_of("w1.weight"), checkpoint.dtype_of("w1.weight")) == (
        (8, 64),
        "bfloat16",
    )
    meant = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
    for row, byte, column in ((0, 0, 0), (3, 17, 34), (7, 31, 62)):
        code, power = int(pairs.view(np.uint8)[row, byte]), float(powers[row, column // 32])
        assert checkpoint["w1.weight"][row, column] == meant[code & 15] * power
        assert checkpoint["w1.weight"][row, column + 1] == meant[code >> 4] * power
    wanted = Float8((4, 8), "bfloat16").widen("wq", codes, scales.astype(np.float32))
    np.testing.assert_array_equal(checkpoint["wq.weight"], wanted)
    for wrong in ({"w1.scale": powers[:, :1]}, {"w1.scale": powers.astype(np.float32)}):
        write_safetensors(tmp_path / "model.safetensors", list((tensors | wrong).items()))
        with pytest.raises(CheckpointError, match=r"expected scales of shape \[8, 2\] in F8_E8M0"):
            Checkpoint.open(tmp_path)["w1.weight"]
    none = {"w1.scale": np.full((8, 2), 255, np.uint8).view(e8m0)}
    write_safetensors(tmp_path / "model.safetensors", list((tensors | none).items()))
    with pytest.raises(CheckpointError, match="expected scales of at most"):
        Checkpoint.open(tmp_path)["w1.weight"]


@pytest.mark.parametrize("spelled", ["e4m3", "float8_e4m3fn"])
def test_the_format_has_two_names(spelled: str) -> None:
    config = CONFIG | {"quantization_config": SCHEME | {"fmt": spelled}}
    assert parse_config(config).quantization is None


def test_a_folder_is_one_of_floats(tmp_path: Path) -> None:
    assert parse_config(CONFIG).quantization is None
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    codes, scales = draw(130, 100, (128, 128))
    plain = np.ones((2, 3), np.float32)
    tensors = {"a": codes, "a_scale_inv": scales, "b": plain, "c": codes}
    write_safetensors(tmp_path / "model.safetensors", list(tensors.items()))
    checkpoint = Checkpoint.open(tmp_path)
    assert sorted(checkpoint) == ["a", "b", "c"]
    assert (checkpoint.dtype_of("a"), checkpoint.shape_of("a")) == ("bfloat16", (130, 100))
    assert checkpoint.bytes_of("a") == 130 * 100 + 2 * 4
    np.testing.assert_array_equal(
        checkpoint["a"], Float8((128, 128), "bfloat16").widen("a", codes, scales)
    )
    assert np.shares_memory(checkpoint["b"], checkpoint["b"])  # where it lies
    assert checkpoint["c"].dtype == CODES  # without scales no weight's dtype
    codes.view(np.uint8)[0, 0] = 0x7F
    write_safetensors(tmp_path / "model.safetensors", list(tensors.items()))
    with pytest.raises(CheckpointError, match=r"model.safetensors: tensor 'a': .* code 0x7f"):
        Checkpoint.open(tmp_path)["a"]
    with pytest.raises(CheckpointError, match="tensors, .* are missing"):
        quantize_folder(tmp_path, tmp_path / "int8", Quantization(8))
