"""Penalties: the definition by hand, against others' of the same name, and what must not change."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from monolane.executor_api import Draw
from monolane.reference import choose, count_seen, limited, penalised

VOCAB = 40
rows = arrays(np.float32, VOCAB, elements=st.floats(-20, 20, width=32))
sequences = st.lists(st.integers(0, VOCAB - 1), max_size=60)
strengths = st.floats(-2, 2, width=32)
ratios = st.floats(0.5, 2, width=32)


def test_by_hand() -> None:
    row = np.array([2, -2, 0, 3, -4, 1], np.float32)
    seen = count_seen([0, 1, 3, 3, 4, 3], prompt=3)
    assert seen == {0: 0, 1: 0, 3: 3 - 1, 4: 1}
    draw = Draw(frequency_penalty=0.5, presence_penalty=0.25, repetition_penalty=2)
    assert penalised(row, draw, seen).tolist() == [1, -4, 0, 1.5 - 1.25, -8 - 0.75, 1]
    assert row.tolist() == [2, -2, 0, 3, -4, 1]


@settings(max_examples=30, deadline=None)  # the import takes long
@given(row=rows, ids=sequences, ratio=ratios)
def test_repetition_is_that_of_transformers(row: np.ndarray, ids: list[int], ratio: float) -> None:
    torch = pytest.importorskip("torch", reason="needs the [hf] extra")
    transformers = pytest.importorskip("transformers", reason="needs the [hf] extra")
    theirs = transformers.RepetitionPenaltyLogitsProcessor(penalty=ratio)
    expected = theirs(torch.tensor([ids], dtype=torch.int64), torch.tensor(row[None]))
    ours = penalised(row, Draw(repetition_penalty=ratio), count_seen(ids, 0))
    np.testing.assert_array_equal(ours, expected[0].numpy())


@given(row=rows, ids=sequences, frequency=strengths, presence=strengths, prompt=st.integers(0, 60))
def test_frequency_and_presence_are_those_of_openai(
    row: np.ndarray, ids: list[int], frequency: float, presence: float, prompt: int
) -> None:
    """mu[j] - c[j] * alpha_frequency - float(c[j] > 0) * alpha_presence, over drawn tokens."""
    counts = Counter(ids[prompt:])
    draw = Draw(frequency_penalty=frequency, presence_penalty=presence)
    ours = penalised(row, draw, count_seen(ids, prompt))
    for token in range(VOCAB):
        c = counts[token]
        exact = float(row[token]) - (c * frequency + (c > 0) * presence)
        assert ours[token] == np.float32(exact)


@given(row=rows, ids=sequences, prompt=st.integers(0, 60))
def test_neutral_values_change_no_bit(row: np.ndarray, ids: list[int], prompt: int) -> None:
    row[0] = -0.0
    seen = count_seen([0, *ids], prompt)
    assert not Draw().penalises
    assert penalised(row, Draw(), seen).tobytes() == row.tobytes()


@given(row=rows, ids=sequences, ratio=ratios)
def test_what_was_not_seen_keeps_its_logit(row: np.ndarray, ids: list[int], ratio: float) -> None:
    draw = Draw(repetition_penalty=ratio, frequency_penalty=1)
    ours = penalised(row, draw, count_seen(ids, 3))
    others = np.setdiff1d(np.arange(VOCAB), ids)
    np.testing.assert_array_equal(ours[others], row[others])


def test_penalties_come_behind_biases_and_before_the_mask() -> None:
    row = np.array([1, -1, 4, 4], np.float32)
    draw = Draw(logit_bias=((0, 3), (1, 3), (2, -np.inf)), repetition_penalty=2)
    seen = count_seen([0, 1, 2, 3], 4)
    assert limited(row, draw, None, seen).tolist() == [2, 1, -np.inf, 2]
    only = np.array([0b0011], np.uint32)
    assert limited(row, draw, only, seen).tolist() == [2, 1, -np.inf, -np.inf]


def test_a_penalty_breaks_a_loop() -> None:
    row = np.array([1, 0.9, 0.5], np.float32)
    ids: list[int] = []
    draw = Draw(frequency_penalty=0.3)
    for _ in range(6):
        ids.append(choose(row, draw, len(ids), seen=count_seen(ids, 0)))
    assert ids == [0, 1, 0, 1, 2, 0]
