"""The native choice of a token against the definition, over vocabularies of every kind."""

import itertools
from typing import Any

import numpy as np
import pytest

from monolane._core import choose as native
from monolane.epoch import Draw
from monolane.reference import choose

POSITIONS = range(3)
LIMITS: list[dict[str, Any]] = [
    {},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"top_k": 100_000},
    {"top_p": 0.95},
    {"top_p": 0.5, "min_p": 0.1},
    {"top_p": 0.999999},
    {"top_p": 1e-9},
    {"min_p": 0.05},
    {"min_p": 1.0},
]


def logits_of(kind: str, size: int, rng: np.random.Generator) -> np.ndarray:
    x = rng.standard_normal(size).astype(np.float32)
    kinds = {
        "flat": x * np.float32(0.01),
        "equal": np.ones(size, np.float32),
        "wide": x * 4,
        "steep": x * 60,
        "ties": np.round(x * 4),
        # So large that noise is rounded to a step or two: sums are equal, and the first wins.
        "coarse": np.float32(1e8) + 8 * rng.integers(0, 3, size).astype(np.float32),
        "banned": np.where(rng.random(size) < 0.7, -np.inf, x * 3).astype(np.float32),
    }
    found = kinds[kind]
    found[rng.integers(size)] = max(1.0, found.max())  # the first of the largest is anywhere
    return found


@pytest.mark.parametrize("kind", ["flat", "equal", "wide", "steep", "ties", "coarse", "banned"])
@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000, 20_011])
def test_it_is_the_definitions(kind: str, size: int) -> None:
    rng = np.random.default_rng(size)
    logits_V = logits_of(kind, size, rng)
    drawn = []
    for temperature, limits in itertools.product((0.0, 0.2, 1.0, 5.0), LIMITS):
        seed = int(rng.integers(2**63))
        draw = Draw(temperature=np.float32(temperature).item(), seed=seed, **limits)
        limited = (draw.temperature, draw.top_k, draw.top_p, draw.min_p, seed)
        for position in POSITIONS:
            found = native(logits_V, *limited, position)
            assert found == choose(logits_V, draw, position), (draw, position)
            drawn.append(found)
    if kind == "flat" and size > 64:
        assert len(set(drawn)) > 20, "noise decides nothing here"


@pytest.mark.parametrize("share", [0.5, 0.01, 0.0])
def test_a_mask_goes_before_limits(share: float) -> None:
    rng = np.random.default_rng(1)
    logits_V = logits_of("wide", 5000, rng)
    for limits in LIMITS:
        bits = rng.random(5000) < share
        bits[4999] = True
        mask_M = np.packbits(np.pad(bits, (0, -5000 % 32)), bitorder="little").view(np.uint32)
        draw = Draw(temperature=1.0, seed=5, **limits)
        limited = (1.0, draw.top_k, draw.top_p, draw.min_p, 5)
        for position in POSITIONS:
            found = native(logits_V, *limited, position, mask_M)
            assert bits[found]
            assert found == choose(logits_V, draw, position, mask_M)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="logits: expected one or more, got none"):
        native(np.zeros(0, np.float32), 1.0, 0, 1.0, 0.0, 0, 0)
    with pytest.raises(ValueError, match="mask: expected a bit for each logit"):
        native(np.zeros(33, np.float32), 1.0, 0, 1.0, 0.0, 0, 0, np.ones(1, np.uint32))
