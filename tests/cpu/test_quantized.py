"""Quantised matrices in the native executor: against the oracle on the same folder."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from monolane._core import kernels
from monolane.cpu import DTYPES, CpuExecutor
from monolane.cpu import _weights as handover
from monolane.cpu._arithmetic import find_arithmetic
from monolane.errors import BackendError, CheckpointError
from monolane.model import (
    Checkpoint,
    ModelConfig,
    Quantization,
    Quantized,
    Role,
    Weights,
    parse_config,
    quantize_folder,
    read_config,
    tensor_specs,
    write_checkpoint,
)
from monolane.ops import modules
from monolane.reference import ReferenceModel, _layer_pass, _model, log_probabilities

from .activations import rounded

CONFIG: dict[str, Any] = {
    "model_type": "laneformer",
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 98,
    "max_position_embeddings": 128,
    "num_lanes": 1,
    "broadcast_delay": 2,
    "sliding_window": 24,
    "swa_layers": [0, 2],
    "torch_dtype": "bfloat16",
}
SHAPES: dict[str, dict[str, Any]] = {
    "one lane": {},
    "lanes": {"hidden_size": 128, "num_attention_heads": 4, "num_lanes": 2},
    "mean head": {"lm_head_type": "replicate"},
    "concat head": {
        "hidden_size": 64,
        "num_attention_heads": 2,
        "num_lanes": 2,
        "lm_head_type": "lane",
        "vocab_size": 97,
    },
    "tied head": {"tie_word_embeddings": True},
}
BITS = pytest.mark.parametrize("bits", [8, 4])
IDS = np.random.default_rng(3).integers(97, size=100)


def write_float(folder: Path, **changes: Any) -> Path:
    raw = CONFIG | changes
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(raw))
    rng = np.random.default_rng(0)
    tensors = [
        (spec.name, rng.normal(scale=0.15, size=spec.shape).astype(ml_dtypes.bfloat16))
        for spec in tensor_specs(parse_config(raw))
    ]
    write_checkpoint(folder, tensors)
    return folder


def load(folder: Path) -> Weights:
    return Weights.load(read_config(folder), Checkpoint.open(folder))


def pair(tmp_path: Path, bits: int, **changes: Any) -> tuple[Weights, Weights]:
    """A float model's weights, and those of the folder that it was quantised to."""
    source = write_float(tmp_path / "float", **changes)
    quantize_folder(source, tmp_path / "q", Quantization(bits))
    return load(source), load(tmp_path / "q")


def run(weights: Weights, dtype: str = "auto", **options: Any) -> np.ndarray:
    return CpuExecutor(weights, dtype, context=128, slots=1, **options).logits(0, IDS)


def oracle(weights: Weights) -> np.ndarray:
    model = ReferenceModel(weights)
    return model.forward(IDS, model.new_cache())


def bound(config: ModelConfig, logits: np.ndarray) -> float:
    """The most that the RMS difference of the logits may be; the weights are the same numbers.

    Activations are rounded to a grid of step max |x| / 127 per group of 32. Such an error is
    uniform in half a step either way: RMS max |x| / 254 / sqrt(3). A group's RMS is at least
    max |x| / sqrt(32), so the error is at most sqrt(32) / 254 / sqrt(3) = 1.3 % of it (0.5 % where
    values are normal). Keys and values are rounded to bfloat16: 2^-9 / sqrt(3), 0.1 %. The errors
    are independent of the weights, so a product carries over the share it got, and those of the
    4N + 1 products along the depth add up as a random walk. A tied head adds ``tied_error``.
    """
    products = 4 * config.num_layers + 1
    activations = np.sqrt(32) / 254 / np.sqrt(3)
    share = np.sqrt(products * activations**2 + config.num_layers * (2.0**-9) ** 2 / 3)
    return float(share * logits.std() + tied_error(config, logits))


def tied_error(config: ModelConfig, logits: np.ndarray) -> float:
    """A tied head is the float embedding to the oracle, and quantised to the executor.

    Its codes err by a uniform half step of the largest weight / 127 or / 7.
    """
    if not config.tie_embeddings or config.quantization is None:
        return 0.0
    codes = 2 ** (config.quantization.bits - 1) - 1
    # 2.4: the largest of 32 normal weights, as this test draws them, over their RMS.
    return float(2.4 / (2 * codes * np.sqrt(3)) * np.sqrt((logits**2).mean()))


@BITS
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_against_the_oracle_on_the_same_folder(
    tmp_path: Path, bits: int, shape: str
) -> None:
    plain, quantized = pair(tmp_path, bits, **SHAPES[shape])
    wanted = oracle(quantized)
    difference = np.sqrt(((run(quantized) - wanted) ** 2).mean())
    assert difference < bound(quantized.config, wanted)
    assert difference > 1e-3 * wanted.std()  # that activations are integers indeed
    # And the bound tells the quantised model from the original where the codes are coarse.
    if bits == 4:
        assert np.sqrt(((oracle(plain) - wanted) ** 2).mean()) > bound(quantized.config, wanted)


@BITS
@pytest.mark.parametrize("isa", kernels.supported())
def test_every_instruction_set(tmp_path: Path, bits: int, isa: str) -> None:
    _, quantized = pair(tmp_path, bits)
    wanted = oracle(quantized)
    difference = np.sqrt(((run(quantized, isa=isa) - wanted) ** 2).mean())
    assert difference < bound(quantized.config, wanted)


@BITS
@pytest.mark.parametrize("shape", SHAPES)
def test_quantising_on_load_gives_the_same_bits(tmp_path: Path, bits: int, shape: str) -> None:
    plain, quantized = pair(tmp_path, bits, **SHAPES[shape])
    np.testing.assert_array_equal(run(plain, f"int{bits}"), run(quantized))
    np.testing.assert_array_equal(run(quantized, f"int{bits}"), run(quantized))


def divergence(logits: np.ndarray, wanted: np.ndarray) -> float:
    """KL(wanted || logits), nats, in the mean over the tokens."""
    theirs = np.stack([log_probabilities(row) for row in wanted])
    ours = np.stack([log_probabilities(row) for row in logits])
    return float((np.exp(theirs) * (theirs - ours)).sum(axis=-1).mean())


@pytest.mark.parametrize("isa", kernels.supported())
def test_a_few_large_activations_do_not_cost_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isa: str
) -> None:
    """Two channels of the norms are 20 times as large as the others, as trained models have such.

    Their groups have nearly all of the error that 8 bits make in what is normed, and are fine; the
    other products keep theirs. All in all less than half is left of it: the oracle with activations
    in 8 bits says how much that is.
    """
    sizes = {"hidden_size": 384, "intermediate_size": 768, "head_dim": 64}
    source = write_float(tmp_path / "float", **sizes)
    tensors = {name: array.copy() for name, array in Checkpoint.open(source).items()}
    for name, array in tensors.items():
        if "norm" in name:
            large = np.full(array.shape, 0.1)
            large[..., [7, 200]] = 2
            tensors[name] = large.astype(array.dtype)
    write_checkpoint(source, list(tensors.items()))
    quantize_folder(source, tmp_path / "q", Quantization(8))
    weights = load(tmp_path / "q")
    exact = oracle(weights)
    found = run(weights, isa=isa, cache_dtype="float32")

    def linear(x_LTD: np.ndarray, weight_LRD: np.ndarray) -> np.ndarray:
        coarse = np.stack([rounded(x, fine=False) for x in x_LTD]).astype(np.float32)
        return np.matmul(coarse, weight_LRD.swapaxes(1, 2))

    for module in (_model, _layer_pass, *modules("reference")):
        if hasattr(module, "linear"):
            monkeypatch.setattr(module, "linear", linear)
    assert divergence(found, exact) < divergence(oracle(weights), exact) / 2


class Recorder:
    """Stands where the native table does, and keeps what it is given."""

    def __init__(self, layers: int) -> None:
        self.matrices: dict[tuple[Role, int], tuple[np.ndarray, np.ndarray | None]] = {}

    def set_matrix(
        self,
        role: int,
        layer: int,
        values: np.ndarray,
        scales: np.ndarray | None,
        **rest: int,
    ) -> None:
        self.matrices[tuple(Role)[role], layer] = (values, scales)

    def set_vector(self, role: int, layer: int, values: np.ndarray) -> None:
        pass


@BITS
def test_the_core_is_given_the_mapping_itself(
    tmp_path: Path, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair(tmp_path, bits)
    checkpoint = Checkpoint.open(tmp_path / "q")
    weights = Weights.load(read_config(tmp_path / "q"), checkpoint)
    monkeypatch.setattr(handover, "WeightTable", Recorder)
    found = handover.hand_over(weights, weights.config, find_arithmetic("auto", f"int{bits}"))
    table: Any = found.table
    matrices = [spec for spec in tensor_specs(weights.config) if spec.part == "codes"]
    assert len(matrices) == 4 * 7 + 1
    for spec in matrices:
        codes, scales = table.matrices[spec.role, -1 if spec.layer is None else spec.layer]
        assert np.shares_memory(codes, checkpoint[spec.name])
        assert np.shares_memory(scales, checkpoint[spec.name.replace(".weight", ".scales")])


@BITS
def test_the_workers_make_their_panels_once(tmp_path: Path, bits: int) -> None:
    """What the loader handed over is not read again, but for the rows of the embedding."""
    _, mapped = pair(tmp_path, bits)
    own = {
        at: Quantized(q.bits, np.array(q.codes), np.array(q.scales))
        for at, q in mapped.quantized.items()
    }
    weights = Weights(mapped.config, mapped.outer, mapped.layers, own)
    executor = CpuExecutor(weights, "auto", context=128, slots=1, workers=1)
    stored = sum(q.codes.nbytes + q.scales.nbytes for q in own.values())
    # A matrix ends in a whole panel: at most 15 rows more, of at most 192 columns.
    assert stored <= executor.converted_bytes <= stored + len(own) * 15 * 192 * 1.1 + (2 << 20)
    before = executor.logits(0, IDS)
    for part in own.values():
        part.codes[...] = 1
        part.scales[...] = 0
    executor.truncate(0, 0)
    np.testing.assert_array_equal(executor.logits(0, IDS), before)


@pytest.mark.parametrize("isa", kernels.supported())
def test_codes_that_the_quantiser_never_writes(tmp_path: Path, isa: str) -> None:
    """int8 has a code -128; a file may hold it, and no instruction set may wrap it round."""
    _, weights = pair(tmp_path, 8)
    codes = np.array(weights.quantized[Role.UP, 1].codes)
    codes[..., ::3] = -128
    scales = weights.quantized[Role.UP, 1].scales
    hostile = {**weights.quantized, (Role.UP, 1): Quantized(8, codes, scales)}
    changed = Weights(weights.config, weights.outer, weights.layers, hostile)
    wanted = oracle(changed)
    difference = np.sqrt(((run(changed, isa=isa) - wanted) ** 2).mean())
    assert difference < bound(changed.config, wanted)


@BITS
def test_scales_that_are_no_numbers_give_none(tmp_path: Path, bits: int) -> None:
    _, weights = pair(tmp_path, bits)
    head = weights.quantized[Role.HEAD, None]
    scales = np.full_like(head.scales, np.nan)
    hostile = {**weights.quantized, (Role.HEAD, None): Quantized(bits, head.codes, scales)}
    changed = Weights(weights.config, weights.outer, weights.layers, hostile)
    assert np.isnan(run(changed)).all()


@BITS
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "auto"])
def test_a_quantised_model_has_one_dtype(tmp_path: Path, bits: int, dtype: str) -> None:
    _, weights = pair(tmp_path, bits)
    if dtype == f"int{bits}":
        assert CpuExecutor(weights, dtype, context=9, slots=1).dtype == dtype
        return
    with pytest.raises(BackendError, match=f"expected auto or int{bits}, in which .* '{dtype}'"):
        CpuExecutor(weights, dtype, context=9, slots=1)


def test_loading_what_cannot_be_quantised(tmp_path: Path) -> None:
    folder = write_float(tmp_path / "odd", intermediate_size=112)
    with pytest.raises((BackendError, ValueError), match="multiple of 32"):
        run(load(folder), "int8")
    weights = load(write_float(tmp_path / "nan"))
    wrong = np.full_like(weights.layers[2][Role.GATE], np.nan)
    layers = list(weights.layers)
    layers[2] = {**layers[2], Role.GATE: wrong}
    with pytest.raises(CheckpointError, match="gate: expected finite weights"):
        run(Weights(weights.config, weights.outer, tuple(layers)), "int4")
