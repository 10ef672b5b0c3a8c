"""The native executor against the goldens, in each type of floats, on each instruction set."""

from pathlib import Path

import numpy as np
import pytest

from monolane._core import kernels
from monolane.cpu import CpuExecutor
from monolane.model import Checkpoint, ModelConfig, SafetensorsFile, Weights, read_config
from monolane.reference import ReferenceModel

GOLDEN = Path(__file__).parents[1] / "golden"
WORKERS = (1, 2, 3, 8, 16)


def load(folder: Path) -> Weights:
    return Weights.load(read_config(folder), Checkpoint.open(folder))


@pytest.mark.parametrize("workers", WORKERS)
def test_goldens_in_float32(golden: Path, workers: int) -> None:
    expected = SafetensorsFile(golden / "expected.safetensors")
    executor = CpuExecutor(load(golden), "float32", context=128, slots=1, workers=workers)
    for ids, logits in zip(expected["input_ids"], expected["logits"], strict=True):
        executor.truncate(0, 0)
        assert np.abs(executor.logits(0, ids) - logits).max() < 1e-4


@pytest.mark.parametrize("workers", [1, 3])
def test_hidden_states_of_every_kind_of_head(golden: Path, workers: int) -> None:
    weights = load(golden)
    ids = SafetensorsFile(golden / "expected.safetensors")["input_ids"][0]
    reference = ReferenceModel(weights)
    wanted_TD = reference.hidden(ids, reference.new_cache())
    executor = CpuExecutor(weights, "float32", context=128, slots=1, workers=workers)
    assert np.abs(executor.hidden(0, ids) - wanted_TD).max() < 1e-4  # as logits of the goldens
    assert executor.length(0) == len(ids)
    executor.truncate(0, 0)
    parts = [executor.hidden(0, ids[:1]), executor.hidden(0, ids[1:])]
    executor.truncate(0, 0)
    assert np.array_equal(np.concatenate(parts), executor.hidden(0, ids))
    executor.truncate(0, 0)
    logits_TV = executor.logits(0, ids)  # logits are made again afterwards
    assert logits_TV.any(axis=1).all()


def bfloat16_bound(config: ModelConfig, logits: np.ndarray) -> float:
    """How far rounding activations to bfloat16 may move a logit.

    Each of 4 products per layer, and the head, rounds its input by at most 2^-9 of its size. The
    errors of the inputs are independent, so a product's own relative error stays about
    2^-9 / sqrt(3) and those of the 4N + 1 products add up as a random walk. Factor 6: the largest
    of all logits rather than the typical one.
    """
    steps = 4 * config.num_layers + 1
    return float(6 * 2.0**-9 / np.sqrt(3) * np.sqrt(steps) * logits.std())


@pytest.mark.parametrize("dtype", ["bfloat16", "auto"])
def test_goldens_in_bfloat16(golden: Path, dtype: str) -> None:
    expected = SafetensorsFile(golden / "expected.safetensors")
    executor = CpuExecutor(load(golden), dtype, context=128, slots=1)
    ids, logits = expected["input_ids"][0], expected["logits"][0]
    difference = np.abs(executor.logits(0, ids) - logits).max()
    assert difference < bfloat16_bound(read_config(golden), logits)
    assert difference > 1e-5  # that it is bfloat16 indeed


def test_goldens_in_float16(golden: Path) -> None:
    """Activations stay float32; keys and values round to three bits more than bfloat16 has."""
    expected = SafetensorsFile(golden / "expected.safetensors")
    executor = CpuExecutor(load(golden), "float16", context=128, slots=1)
    ids, logits = expected["input_ids"][0], expected["logits"][0]
    difference = np.abs(executor.logits(0, ids) - logits).max()
    assert difference < bfloat16_bound(read_config(golden), logits) / 8
    assert difference > 1e-5  # that its cache is float16 indeed


@pytest.mark.parametrize("isa", kernels.supported())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_instruction_set(isa: str, dtype: str) -> None:
    folder = GOLDEN / "released_shape"
    expected = SafetensorsFile(folder / "expected.safetensors")
    executor = CpuExecutor(load(folder), dtype, context=128, slots=1, isa=isa)
    ids, logits = expected["input_ids"][1], expected["logits"][1]
    bound = 1e-4 if dtype == "float32" else bfloat16_bound(read_config(folder), logits)
    assert np.abs(executor.logits(0, ids) - logits).max() < bound
