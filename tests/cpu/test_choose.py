"""The native choice of a token against the definition, over vocabularies of every kind."""

import itertools
from typing import Any

import numpy as np
import pytest
from random_weights import weights_of

from monolane._core import choose as native
from monolane.cpu import CpuExecutor
from monolane.executor_api import NO_TOKEN, Advance, Draw
from monolane.model import NOW, Head, LayerConfig, ModelConfig
from monolane.reference import choose, log_probabilities

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


def test_what_no_noise_can_be_added_to() -> None:
    """Where the largest scaled logit is infinite, the largest logit that may come is drawn."""
    logits_V = np.array([-3, 1, 12, 2, 1.5, 2, 1, 0], np.float32)
    low_V = np.array([-3, -9, -7, -5, -4, -6, -8, -2], np.float32)  # every one goes to -inf
    mask_M = np.array([0b1111_1110], np.uint32)
    for temperature, limits in itertools.product((1e-38, 1e-44), LIMITS):
        draw = Draw(temperature=np.float32(temperature).item(), seed=5, **limits)
        limited = (draw.temperature, draw.top_k, draw.top_p, draw.min_p, 5)
        for row_V, wanted in ((logits_V, 2), (low_V, 7)):
            assert native(row_V, *limited, 0, mask_M) == wanted
            assert choose(row_V, draw, 0, mask_M) == wanted


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("size", [1, 63, 64, 65, 200, 5000])
def test_rows_without_a_finite_peak_give_no_token(size: int, value: float) -> None:
    """Wherever NaN is, or a positive infinity: in whole blocks of a scan, and behind them."""
    rng = np.random.default_rng(size)
    mask_M = np.full(-(-size // 32), 0xFFFFFFFF, np.uint32)
    for place in sorted({0, size // 2, size - 1, max(0, size - 2)}):
        logits_V = logits_of("wide", size, rng)
        logits_V[place] = value
        for temperature, limits in itertools.product((0.0, 1.0), LIMITS):
            draw = Draw(temperature=temperature, seed=5, **limits)
            limited = (temperature, draw.top_k, draw.top_p, draw.min_p, 5)
            for mask in (None, mask_M):
                assert native(logits_V, *limited, 0, mask) == NO_TOKEN
                assert choose(logits_V, draw, 0, mask) == NO_TOKEN


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_help(workers: int) -> None:
    """A vocabulary of several slices: the draws and log-probabilities are the definition's."""
    config = ModelConfig(
        family="llama",
        hidden_size=32,
        intermediate_size=48,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=20_011,
        max_positions=64,
        num_lanes=1,
        layers=(LayerConfig(NOW, NOW),),
        head=Head.VOCAB_PARALLEL,
    )
    executor = CpuExecutor(weights_of(config), "float32", context=64, slots=2, workers=workers)
    for limits in LIMITS:
        advances = [
            Advance(
                slot=slot,
                token_ids=(3, 1 + slot),
                budget=6,
                draw=Draw(temperature=1.5, seed=slot, **limits),
                logprobs=1,
            )
            for slot in range(2)
        ]
        executor.start(advances)
        while not executor.read(0.1):
            pass
        events = executor.take()
        for advance in advances:
            mine = [event for event in events if event.slot == advance.slot]
            executor.truncate(advance.slot, 0)
            ids = [*advance.token_ids, *(event.token_id for event in mine)]
            logits = executor.logits(advance.slot, ids)
            executor.truncate(advance.slot, 0)
            for i, event in enumerate(mine):
                assert event.token_id == choose(logits[1 + i], advance.draw, 2 + i)
                exact = log_probabilities(logits[1 + i].astype(np.float64))[event.token_id]
                assert event.logprob is not None
                # Rounded once to float32; the logit is exact, and so nearly is the sum.
                assert abs(event.logprob.logprob - exact) <= 2.0**-23 * abs(exact)
