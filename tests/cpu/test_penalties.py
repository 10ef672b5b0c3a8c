"""Penalties in the core: the same draws as the definition, however an epoch is cut up."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolane.cpu import CpuExecutor
from monolane.errors import RequestError
from monolane.executor_api import Advance, Draw, Guide
from monolane.model import Checkpoint, Weights, read_config
from monolane.reference import choose, count_seen

GOLDEN = Path(__file__).parents[1] / "golden" / "delay1_8lanes"
PROMPT = tuple(np.random.default_rng(5).integers(0, 12, 30).tolist())
DRAW = Draw(
    temperature=0.9,
    seed=3,
    frequency_penalty=0.7,
    presence_penalty=-0.4,
    repetition_penalty=1.3,
    logit_bias=((3, 2.5), (7, -np.inf)),
)


@pytest.fixture(scope="module")
def executor() -> CpuExecutor:
    weights = Weights.load(read_config(GOLDEN), Checkpoint.open(GOLDEN))
    return CpuExecutor(weights, "float32", context=90, slots=2, workers=2)


def epoch(executor: CpuExecutor, advance: Advance, *guides: Guide) -> list[int]:
    executor.start([advance])
    for guide in guides:
        executor.guide(advance.slot, guide)
    while not executor.read(0.1):
        pass
    return [event.token_id for event in executor.take()]


def expected(executor: CpuExecutor, draw: Draw, ids: list[int], prompt: int) -> list[int]:
    """Return what the definition draws at each position of a sequence from ``prompt`` on."""
    executor.truncate(1, 0)
    logits = executor.logits(1, ids)
    return [
        choose(logits[i - 1], draw, i, seen=count_seen(ids[:i], prompt))
        for i in range(prompt, len(ids))
    ]


@settings(max_examples=25, deadline=None)
@given(
    frequency=st.floats(-2, 2),
    presence=st.floats(-2, 2),
    repetition=st.floats(0.5, 2),
    limits=st.tuples(st.sampled_from([0, 5]), st.floats(0.3, 1), st.sampled_from([0, 0.05])),
    temperature=st.sampled_from([0.0, 0.8]),
    seed=st.integers(0, 2**64 - 1),
)
def test_draws_are_the_oracles(
    executor: CpuExecutor,
    frequency: float,
    presence: float,
    repetition: float,
    limits: tuple[int, float, float],
    temperature: float,
    seed: int,
) -> None:
    draw = Draw(
        temperature=temperature,
        top_k=limits[0],
        top_p=limits[1],
        min_p=limits[2],
        seed=seed,
        frequency_penalty=frequency,
        presence_penalty=presence,
        repetition_penalty=repetition,
    )
    executor.truncate(0, 0)
    advance = Advance(slot=0, token_ids=PROMPT, budget=25, draw=draw, prompt=len(PROMPT))
    drawn = epoch(executor, advance)
    assert drawn == expected(executor, draw, [*PROMPT, *drawn], len(PROMPT))


def test_epochs_that_go_on_look_back(executor: CpuExecutor) -> None:
    """The same tokens in epochs of any length, whatever part of the prompt was there before."""
    whole = Advance(slot=0, token_ids=PROMPT, budget=40, draw=DRAW, prompt=len(PROMPT))
    executor.truncate(0, 0)
    drawn = epoch(executor, whole)
    assert drawn == expected(executor, DRAW, [*PROMPT, *drawn], len(PROMPT))
    assert drawn != epoch_of_plain(executor, whole)
    executor.truncate(0, 0)
    executor.logits(0, PROMPT[:11])
    parts: list[int] = []
    for budget in (1, 2, 12, 25):
        known = (*PROMPT, *parts)
        held = executor.length(0)
        rest = replace(whole, token_ids=known[held:], budget=budget, history=known[:held])
        parts += epoch(executor, rest)
    assert parts == drawn


def epoch_of_plain(executor: CpuExecutor, whole: Advance) -> list[int]:
    executor.truncate(0, 0)
    plain = replace(DRAW, frequency_penalty=0, presence_penalty=0, repetition_penalty=1)
    return epoch(executor, replace(whole, draw=plain))


def test_forced_tokens_count_and_masks_hold(executor: CpuExecutor) -> None:
    forced = (5, 5, 6, 5)
    mask = np.zeros(-(-executor.plan.config.vocab_size // 32), np.uint32)
    mask[0] = 0b1111_0000
    executor.truncate(0, 0)
    advance = Advance(
        slot=0, token_ids=PROMPT, budget=5, draw=DRAW, prompt=len(PROMPT), guided=True
    )
    drawn = epoch(executor, advance, Guide(mask, forced))
    assert drawn[:4] == list(forced)
    ids = [*PROMPT, *forced]
    executor.truncate(1, 0)
    row = executor.logits(1, ids)[-1]
    assert drawn[4] == choose(row, DRAW, len(ids), mask, count_seen(ids, len(PROMPT)))


def test_a_history_that_is_not_the_slots_is_refused(executor: CpuExecutor) -> None:
    vocab = executor.plan.config.vocab_size
    executor.truncate(0, 0)
    executor.logits(0, PROMPT[:4])
    for history, count in (((), 0), (PROMPT[:3], 3)):
        advance = Advance(slot=0, token_ids=(1,), budget=1, draw=DRAW, history=history)
        with pytest.raises(RequestError, match=f"the 4 tokens that the slot holds, got {count}"):
            executor.start([advance])
    advance = Advance(slot=0, token_ids=(1,), budget=1, draw=DRAW, history=(1, 2, 3, vocab))
    with pytest.raises(RequestError, match=f"history: expected ids .*, got {vocab}"):
        executor.start([advance])
    epoch(executor, Advance(slot=0, token_ids=(1,), budget=1))  # without penalties none is needed
