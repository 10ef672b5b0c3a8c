"""As many processes as a model has lanes, or fewer: the bits of one process, on every number.

Logits of a prompt of several passes, and what is drawn behind it. tests/cpu/test_local_ranks.py
does a few of these in the gate, over TCP also.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from monolane.cpu import CpuExecutor
from monolane.engine import ModelFiles
from monolane.executor_api import Advance, Draw

GOLDEN = Path(__file__).parents[1] / "golden"
DEMO = Path(__file__).parents[2] / "src" / "monolane" / "demo"
DRAW = Draw(temperature=1.1, top_k=40, seed=9)


def answer(
    model: Path, lanes: int | None, workers: int, ranks: int
) -> tuple[np.ndarray, list[tuple[object, ...]]]:
    """Return logits, and the tokens drawn behind them with their log-probabilities."""
    weights = ModelFiles.open(model).weights()
    executor = CpuExecutor(
        weights, context=128, slots=1, workers=workers, ranks=ranks, lanes=lanes, patience=60.0
    )
    try:
        vocab = weights.config.vocab_size
        ids = np.random.default_rng(6).integers(vocab, size=80).tolist()
        logits = executor.logits(0, ids[:-1])
        executor.start([Advance(slot=0, token_ids=(ids[-1],), budget=32, draw=DRAW, logprobs=2)])
        while not executor.read(0.1):
            pass
        return logits, [(e.token_id, repr(e.logprob)) for e in executor.take()]
    finally:
        executor.close()


def check(model: Path, ranks: int, lanes: int | None = None) -> None:
    found, drawn = answer(model, lanes, ranks, ranks)
    wanted, drawn_alone = answer(model, lanes, ranks, 1)
    np.testing.assert_array_equal(found, wanted)
    assert drawn == drawn_alone
    assert len(drawn) > 0


def cases() -> list[tuple[str, int]]:
    """Return every golden file on each number of ranks, from 2 on, that divides its lanes."""
    found = []
    for config in sorted(GOLDEN.glob("*/config.json")):
        lanes = json.loads(config.read_text())["num_lanes"]
        found += [(config.parent.name, n) for n in (2, 4, 8) if lanes % n == 0]
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "ranks"), cases())
def test_a_golden_file_on_every_number_of_ranks(name: str, ranks: int) -> None:
    check(GOLDEN / name, ranks)


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_demo_model_on_every_number_of_ranks(ranks: int) -> None:
    check(DEMO, ranks)


@pytest.mark.exhaustive
def test_smollm2_in_three_lanes_on_three_ranks(smollm2: Path) -> None:
    """Its nine query and three KV heads divide by no other number of lanes up to eight."""
    check(smollm2, 3, lanes=3)


def test_the_cases_are_there() -> None:
    assert {ranks for _, ranks in cases()} == {2, 4, 8}
    assert len(cases()) == 16
