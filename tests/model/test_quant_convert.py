"""Quantised folders: written whole or not at all, read back exactly, refused where malformed."""

import json
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from monolane.errors import CheckpointError, ConfigError, ModelNotFoundError
from monolane.model import (
    Checkpoint,
    Quantization,
    Quantized,
    Role,
    SafetensorsFile,
    Weights,
    lane_shape,
    parse_config,
    quantize_folder,
    quantize_matrix,
    read_config,
    render_config,
    write_checkpoint,
    write_safetensors,
)
from tests.random_models import write_random_model

CONFIG: dict[str, Any] = {
    "model_type": "laneformer",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "num_lanes": 2,
    "broadcast_delay": 1,
    "torch_dtype": "bfloat16",
}
COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "LICENSE",
    "NOTICE",
    "THIRD_PARTY_LICENSES/LLAMA2_LICENSE",
)
BITS = pytest.mark.parametrize("bits", [8, 4])
WQ = "model.layers.0.attention.wq"


def write_float(folder: Path, **changes: Any) -> Path:
    """A float model folder with a tokenizer's, a card's and a licence's files in it."""
    write_random_model(folder, CONFIG | changes, dtype=ml_dtypes.bfloat16)
    (folder / "THIRD_PARTY_LICENSES").mkdir()
    for name in COPIED:
        (folder / name).write_text(name)
    (folder / "README.md").write_text("---\ntags: [x]\n---\n\n# A model\n")
    (folder / "modeling_laneformer.py").write_text("raise SystemExit")
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_float(tmp_path / "float")


def load(folder: Path) -> Weights:
    return Weights.load(read_config(folder), Checkpoint.open(folder))


def rewrite(folder: Path, **changes: np.ndarray | None) -> None:
    """Write the weights again, some replaced or added (an array) or dropped (None)."""
    path = folder / "model.safetensors"
    tensors = {name: np.array(array) for name, array in SafetensorsFile(path).items()} | changes
    write_safetensors(path, [(name, array) for name, array in tensors.items() if array is not None])


def edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def written_by_hand(matrix: Quantized) -> np.ndarray:
    """What the format's words say, value by value: a second reading of csrc/kernels/kernels.h."""
    rows, columns = int(np.prod(matrix.shape[:-1])), matrix.shape[-1]
    codes = matrix.codes.reshape(rows, -1)
    scales = matrix.scales.reshape(rows, -1)
    meant = np.empty((rows, columns), np.float32)
    for r in range(rows):
        for k in range(columns):
            group, c = divmod(k, 32)
            if matrix.bits == 8:
                code = int(codes[r, k])
            else:
                byte = int(codes[r, 16 * group + c % 16])
                code = (byte & 15 if c < 16 else byte >> 4) - 8
            meant[r, k] = np.float32(code) * np.float32(scales[r, group])
    return meant.reshape(matrix.shape)


@BITS
def test_codes_mean_what_the_format_says(bits: int) -> None:
    plain = np.random.default_rng(1).normal(size=(2, 3, 96)).astype(np.float32)
    matrix = quantize_matrix(plain, Quantization(bits))
    assert matrix.shape == plain.shape
    np.testing.assert_array_equal(matrix.widened(), written_by_hand(matrix))
    # No value is further off than half a step, |scale| / 2, plus what the scale's rounding to
    # float16 (2^-11 of it) shifts the largest code; int4 may clip its largest by one whole step.
    step = np.repeat(np.abs(matrix.scales.astype(np.float32)), 32, axis=-1)
    limit = 0.5 + 127 * 2.0**-11 if bits == 8 else 1.0 + 8 * 2.0**-11
    assert (np.abs(matrix.widened() - plain) <= limit * step).all()


@BITS
def test_a_written_folder_is_read_back(source: Path, tmp_path: Path, bits: int) -> None:
    before = load(source)
    report = quantize_folder(source, tmp_path / "q", Quantization(bits))
    after = load(tmp_path / "q")
    config = after.config
    assert config.quantization == Quantization(bits)
    assert config.stored_dtype == report.dtype == f"int{bits}"
    assert config.num_parameters == before.config.num_parameters
    assert set(after.outer) == {Role.EMBEDDING, Role.FINAL_NORM}
    assert set(after.layers[1]) == {Role.ATTENTION_NORM, Role.MLP_NORM}
    assert len(after.quantized) == len(report.matrices) == 2 * 7 + 1
    wide = after.dequantized()
    for (role, layer), matrix in after.quantized.items():
        plain = before.outer[role] if layer is None else before.layers[layer][role]
        found = wide.outer[role] if layer is None else wide.layers[layer][role]
        expected = quantize_matrix(plain, Quantization(bits))
        assert matrix.shape == found.shape == lane_shape(config, role)
        np.testing.assert_array_equal(matrix.codes, expected.codes, strict=True)
        np.testing.assert_array_equal(matrix.scales, expected.scales, strict=True)
        np.testing.assert_array_equal(found, expected.widened())
        assert not matrix.codes.flags.owndata  # a view of the mapping
        assert not matrix.scales.flags.writeable
    np.testing.assert_array_equal(after.outer[Role.EMBEDDING], before.outer[Role.EMBEDDING])


def test_the_report_counts_bytes_and_errors(source: Path, tmp_path: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    report = quantize_folder(
        source, tmp_path / "q", Quantization(8), progress=lambda *what: heard.append(what)
    )
    size = {
        p.name: sum(a.nbytes for a in Checkpoint.open(p).values()) for p in (source, tmp_path / "q")
    }
    assert (report.bytes_before, report.bytes_after) == (size["float"], size["q"])
    assert heard[-1][1:] == (size["float"], size["float"])
    assert [done for _, done, _ in heard] == sorted(done for _, done, _ in heard)
    # A normal group's largest of 32 lies near 2.4 sigma: an int8 step is that / 127, its error
    # step / sqrt(12), 0.55 % of sigma. A whole matrix scatters little about it.
    for worst in report.worst().values():
        assert 0.004 < worst.relative_error < 0.007
    first = next(m for m in report.matrices if m.name == f"{WQ}.weight")
    plain = Checkpoint.open(source)[f"{WQ}.weight"].astype(np.float64)
    found = load(tmp_path / "q").quantized[Role.Q, 0].widened()
    expected = np.linalg.norm(found.reshape(plain.shape) - plain) / np.linalg.norm(plain)
    assert abs(first.relative_error - expected) < 1e-6


@BITS
def test_the_files_beside_the_weights(source: Path, tmp_path: Path, bits: int) -> None:
    quantize_folder(source, tmp_path / "q", Quantization(bits))
    names = {path.name for path in (tmp_path / "q").iterdir()}
    assert names == {path.name for path in source.iterdir()} - {"modeling_laneformer.py"}
    card = (tmp_path / "q" / "README.md").read_text()
    assert card.startswith((source / "README.md").read_text())
    assert f"head are int{bits}: symmetric codes in groups of 32" in card
    raw = json.loads((tmp_path / "q" / "config.json").read_text())
    assert raw["quantization_config"] == {
        "quant_method": "monolane",
        "bits": bits,
        "group_size": 32,
        "symmetric": True,
    }
    config = read_config(tmp_path / "q")
    assert parse_config(render_config(config)) == config


def test_a_tied_head_stays_as_stored(tmp_path: Path) -> None:
    source = write_float(tmp_path / "float", tie_word_embeddings=True)
    quantize_folder(source, tmp_path / "q", Quantization(4))
    weights = load(tmp_path / "q")
    assert (Role.HEAD, None) not in weights.quantized
    assert weights.outer[Role.HEAD].dtype == ml_dtypes.bfloat16
    assert "and norms (and so the head" in (tmp_path / "q" / "README.md").read_text()


@pytest.mark.parametrize("lm_head_type", ["replicate", "lane"])
def test_heads_without_a_lane_axis(tmp_path: Path, lm_head_type: str) -> None:
    source = write_float(tmp_path / "float", lm_head_type=lm_head_type)
    quantize_folder(source, tmp_path / "q", Quantization(8))
    weights = load(tmp_path / "q")
    assert weights.quantized[Role.HEAD, None].shape == lane_shape(weights.config, Role.HEAD)


def test_few_tensors_are_in_memory_at_a_time(tmp_path: Path) -> None:
    source = write_float(tmp_path / "float", num_hidden_layers=24, intermediate_size=512)
    largest = 64 * 512 * 4  # a matrix of the MLP, as float32
    quantize_folder(source, tmp_path / "warm", Quantization(8))
    peaks = []
    for name in ("q", "again"):  # one of them may grow a table of the interpreter's own
        tracemalloc.start()
        quantize_folder(source, tmp_path / name, Quantization(8))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    peak = min(peaks)
    total = sum(array.nbytes for array in Checkpoint.open(source).values())
    # A matrix widened, quantised, widened again and subtracted, and some 0.4 MB of names and specs.
    assert peak < 6 * largest + 400_000 < 0.4 * total


def test_shards_keep_codes_and_scales_apart_or_together(source: Path, tmp_path: Path) -> None:
    quantize_folder(source, tmp_path / "q", Quantization(4))
    one = Checkpoint.open(tmp_path / "q")
    (tmp_path / "s").mkdir()
    write_checkpoint(tmp_path / "s", one.items(), max_shard_bytes=3000)
    shutil.copyfile(tmp_path / "q" / "config.json", tmp_path / "s" / "config.json")
    sharded = load(tmp_path / "s")
    for at, matrix in load(tmp_path / "q").quantized.items():
        np.testing.assert_array_equal(sharded.quantized[at].codes, matrix.codes)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_weights_without_a_scale_leave_nothing_behind(
    source: Path, tmp_path: Path, value: float
) -> None:
    name = f"{WQ}.weight"
    wrong = np.array(Checkpoint.open(source)[name])
    wrong.reshape(-1)[7] = value
    rewrite(source, **{name: wrong})
    with pytest.raises(CheckpointError, match=f"{name}.*expected finite weights"):
        quantize_folder(source, tmp_path / "q", Quantization(8))
    assert [path.name for path in tmp_path.iterdir()] == ["float"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "1 are missing: 'model.layers.1.feed_forward.w2.weight'"),
        (np.zeros((2, 64, 32), np.float32), "expected shape .2, 64, 64. from config.json"),
        (np.zeros((2, 64, 64), np.int8), "expected one of BF16, F16, F32, got I8"),
    ],
)
def test_damaged_sources_are_seen_before_anything_is_written(
    source: Path, tmp_path: Path, change: np.ndarray | None, message: str
) -> None:
    rewrite(source, **{"model.layers.1.feed_forward.w2.weight": change})
    heard: list[Any] = []
    with pytest.raises(CheckpointError, match=message):
        quantize_folder(
            source, tmp_path / "q", Quantization(8), progress=lambda *what: heard.append(what)
        )
    assert heard == []
    assert [path.name for path in tmp_path.iterdir()] == ["float"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_lanes": 4, "num_key_value_heads": 4}, "num_heads \\* head_dim / lanes = 16"),
        ({"intermediate_size": 96}, "intermediate_size / lanes = 48; keep this model in bfloat16"),
        ({"hidden_size": 80, "num_attention_heads": 4}, "hidden_size = 80"),
    ],
)
def test_columns_that_are_no_groups(tmp_path: Path, changes: Any, message: str) -> None:
    source = write_float(tmp_path / "float", **changes)
    with pytest.raises(ConfigError, match=f"multiple of 32, which share a scale, got {message}"):
        quantize_folder(source, tmp_path / "q", Quantization(8))
    assert not (tmp_path / "q").exists()


def test_no_golden_has_columns_for_groups(golden: Path, tmp_path: Path) -> None:
    """docs/quantization.md says so; a golden that can be quantised should be measured there."""
    with pytest.raises(ConfigError, match="multiple of 32"):
        quantize_folder(golden, tmp_path / "q", Quantization(8))


def test_sources_and_destinations_that_are_refused(source: Path, tmp_path: Path) -> None:
    scheme, done = Quantization(8), tmp_path / "q"
    quantize_folder(source, done, scheme)
    with pytest.raises(
        ConfigError, match="expected float weights, got int8; quantise the original"
    ):
        quantize_folder(done, tmp_path / "again", scheme)
    with pytest.raises(CheckpointError, match="expected no such folder, got one with files in it"):
        quantize_folder(source, done, scheme)
    with pytest.raises(CheckpointError, match="expected a folder apart from the source"):
        quantize_folder(source, source, scheme, overwrite=True)
    with pytest.raises(ModelNotFoundError, match="expected a model folder"):
        quantize_folder(tmp_path, tmp_path / "again", scheme)
    (tmp_path / "file").write_text("")
    with pytest.raises(
        CheckpointError, match="file/x: cannot be written: Not a dir.*; name another"
    ):
        quantize_folder(source, tmp_path / "file" / "x", scheme)
    quantize_folder(source, done, Quantization(4), overwrite=True)
    assert read_config(done).stored_dtype == "int4"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "float", "q"]


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        ({"bits": 4}, "quant_method: expected one of 'monolane', .*, it is missing"),
        (
            {"quant_method": "monolane", "bits": 8, "ignore": "lm_head"},
            "ignore: expected a list of names such as 'lm_head', got 'lm_head'",
        ),
        ({"quant_method": "monolane"}, "quantization_config: bits: expected an integer"),
        (
            {"quant_method": "monolane", "bits": 3},
            "quantization_config: bits: expected 4 or 8, got 3",
        ),
        ({"quant_method": "monolane", "bits": "8"}, "bits: expected an integer"),
        ({"quant_method": "monolane", "bits": True}, "bits: expected an integer"),
        (
            {"quant_method": "monolane", "bits": 8, "group_size": 64},
            "group_size: expected 32, the one that the kernels read, got 64",
        ),
        (
            {"quant_method": "monolane", "bits": 8, "symmetric": False},
            "symmetric: expected true, since groups have no zero point",
        ),
        ([8], "quantization_config: expected an object or null"),
    ],
)
def test_schemes_that_are_not_supported(scheme: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_config(CONFIG | {"quantization_config": scheme}, "/m/config.json")
    assert str(caught.value).startswith("/m/config.json: quantization_config")


def test_a_scheme_on_columns_that_are_no_groups() -> None:
    scheme = {"quant_method": "monolane", "bits": 8}
    with pytest.raises(ConfigError, match="config.json: quantization: expected matrices"):
        parse_config(CONFIG | {"intermediate_size": 96, "quantization_config": scheme})


def test_null_is_no_scheme() -> None:
    assert parse_config(CONFIG | {"quantization_config": None}).quantization is None


@pytest.fixture
def quantized(source: Path, tmp_path: Path) -> Path:
    quantize_folder(source, tmp_path / "q", Quantization(4))
    return tmp_path / "q"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{WQ}.scales": None}, f"1 are missing: '{WQ}.scales'"),
        ({f"{WQ}.weight": None}, f"1 are missing: '{WQ}.weight'"),
        ({f"{WQ}.zeros": np.ones(1, np.float16)}, f"got 1 more: '{WQ}.zeros'"),
        (
            {f"{WQ}.weight": np.zeros((2, 32, 64), np.uint8)},
            f"'{WQ}.weight': expected shape .2, 32, 32. from config.json, got .2, 32, 64.",
        ),
        ({f"{WQ}.weight": np.zeros((2, 32, 32), np.int8)}, f"'{WQ}.weight': expected U8, got I8"),
        ({f"{WQ}.scales": np.zeros((2, 32, 1), np.float16)}, "expected shape .2, 32, 2. from"),
        ({f"{WQ}.scales": np.zeros((2, 32, 2), np.float32)}, "expected F16, got F32"),
        (
            {"model.tok_embeddings.weight": np.zeros((96, 64), np.int8)},
            "expected one of BF16, F16, F32, got I8",
        ),
    ],
)
def test_tensors_that_are_not_the_schemes(quantized: Path, changes: Any, message: str) -> None:
    rewrite(quantized, **changes)
    with pytest.raises(CheckpointError, match=message):
        load(quantized)


def test_config_and_weights_of_different_schemes(source: Path, quantized: Path) -> None:
    scheme = {"quant_method": "monolane", "bits": 8}
    edit_config(quantized, quantization_config=scheme)
    with pytest.raises(CheckpointError, match="expected shape .2, 32, 64. from config.json, got"):
        load(quantized)
    edit_config(quantized, quantization_config=None)
    with pytest.raises(CheckpointError, match="got 15 more"):
        load(quantized)
    edit_config(source, quantization_config=scheme)
    with pytest.raises(CheckpointError, match="15 are missing"):
        load(source)
