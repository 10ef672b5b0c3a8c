"""The oracle against an independent implementation: see tests/golden/README.md."""

from pathlib import Path

import numpy as np
import pytest

from monolane.model import Checkpoint, SafetensorsFile, Weights, read_config
from monolane.reference import Cache, ReferenceModel

TOLERANCE = 1e-4  # stated by the golden files


@pytest.fixture
def model(golden: Path) -> ReferenceModel:
    return ReferenceModel(Weights.load(read_config(golden), Checkpoint.open(golden)))


@pytest.fixture
def expected(golden: Path) -> SafetensorsFile:
    return SafetensorsFile(golden / "expected.safetensors")


def feed(model: ReferenceModel, ids: np.ndarray, sizes: list[int], cache: Cache) -> np.ndarray:
    """Feed ids in passes of the given widths, the last one repeated; return all logits."""
    parts, at = [], 0
    while at < len(ids):
        width = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        parts.append(model.forward(ids[at : at + width], cache))
        at += width
    return np.concatenate(parts)


@pytest.mark.parametrize("sizes", [[48], [1], [7], [1, 2, 3, 30], [17, 1]], ids=str)
def test_logits_however_the_tokens_are_fed(
    model: ReferenceModel, expected: SafetensorsFile, sizes: list[int]
) -> None:
    for ids, logits in zip(expected["input_ids"], expected["logits"], strict=True):
        ours = feed(model, ids, list(sizes), model.new_cache())
        assert ours.dtype == np.float32
        assert np.abs(ours - logits).max() < TOLERANCE


def test_logits_from_a_cache_that_was_rolled_back(
    model: ReferenceModel, expected: SafetensorsFile
) -> None:
    (one, two), logits = expected["input_ids"], expected["logits"]
    cache = model.new_cache()
    model.forward(one, cache)
    for keep in (30, 17, 1, 0):  # inside and outside the sliding window of 16
        cache.truncate(keep)
        model.forward(two[keep : keep + 9], cache)
        cache.truncate(keep)
        ours = model.forward(one[keep:], cache)
        assert np.abs(ours - logits[0][keep:]).max() < TOLERANCE


def test_greedy_ids(model: ReferenceModel, expected: SafetensorsFile) -> None:
    wanted = expected["greedy_ids"][0].tolist()
    ids, cache = wanted[:8], model.new_cache()
    logits = model.forward(ids, cache)
    while len(ids) < len(wanted):
        ids = [*ids, int(logits[-1].argmax())]
        logits = model.forward(ids[-1:], cache)
    assert ids == wanted
