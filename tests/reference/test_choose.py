from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from monolane.executor_api import Draw
from monolane.reference import (
    allowed_tokens,
    choose,
    gumbel_noise,
    limited,
    log_probabilities,
    mask_bits,
    softmax,
)

PLAIN = Draw(temperature=1.0, seed=3)
GREEDY = Draw()

logit_rows = arrays(
    np.float32, st.integers(1, 40), elements=st.floats(-20, 20, width=32).map(lambda x: round(x, 1))
)


def test_temperature_zero_is_the_first_largest() -> None:
    assert choose(np.array([1, 3, 3, 0], np.float32), GREEDY, 5) == 1


@given(row=logit_rows, seed=st.integers(0, 2**64 - 1), temperature=st.floats(0.1, 3))
def test_a_draw_is_the_argmax_of_scaled_logits_and_noise(
    row: np.ndarray, seed: int, temperature: float
) -> None:
    noise = gumbel_noise(seed, 5, np.arange(len(row)))
    wanted = int(np.argmax(row / np.float32(temperature) + noise))
    assert choose(row, Draw(temperature=temperature, seed=seed), 5) == wanted


@given(row=logit_rows, k=st.integers(1, 45))
def test_top_k_keeps_the_first_k(row: np.ndarray, k: int) -> None:
    kept = allowed_tokens(row, k, 1.0, 0.0)
    ranked = sorted(range(len(row)), key=lambda i: (-row[i], i))
    assert kept.tolist() == sorted(ranked[:k])


@given(row=logit_rows, p=st.floats(0, 0.999))
def test_top_p_keeps_the_shortest_front_that_reaches_p(row: np.ndarray, p: float) -> None:
    kept = allowed_tokens(row, 0, p, 0.0)
    ranked = sorted(range(len(row)), key=lambda i: (-row[i], i))
    front = ranked[: len(kept)]
    assert kept.tolist() == sorted(front)
    probability = softmax(row).astype(np.float64)
    slack = 1e-6  # softmax in float32
    assert probability[front].sum() >= p - slack
    assert len(front) == 1 or probability[front[:-1]].sum() < p + slack


@given(row=logit_rows, p=st.floats(0.001, 1))
def test_min_p_keeps_those_close_to_the_first(row: np.ndarray, p: float) -> None:
    kept = set(allowed_tokens(row, 0, 1.0, p).tolist())
    ratio = np.exp(row.astype(np.float64) - row.max())
    for token, share in enumerate(ratio):
        if abs(share - p) > 1e-6:
            assert (token in kept) == (share >= p)


def test_top_p_counts_what_top_k_left() -> None:
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    # Of the whole, 0.4 + 0.3 misses 0.75; of the two that top-k kept, 0.4 / 0.7 misses it too.
    assert allowed_tokens(row, 0, 0.75, 0).tolist() == [0, 1, 2]
    assert allowed_tokens(row, 2, 0.75, 0).tolist() == [0, 1]
    assert allowed_tokens(row, 2, 0.5, 0).tolist() == [0]


def test_draws_follow_the_distribution() -> None:
    row = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    count = 4000
    drawn = [choose(row, PLAIN, position) for position in range(count)]
    share = np.bincount(drawn, minlength=4) / count
    p = softmax(row)
    assert (np.abs(share - p) < 5 * np.sqrt(p * (1 - p) / count)).all()


@given(row=logit_rows)
def test_log_probabilities_sum_to_one(row: np.ndarray) -> None:
    assert abs(np.exp(log_probabilities(row).astype(np.float64)).sum() - 1) < 1e-5


def mask_of(allowed: np.ndarray) -> np.ndarray:
    """Return a mask, uint32 [M], built bit by bit."""
    mask = np.zeros(-(-len(allowed) // 32), np.uint32)
    for token in np.flatnonzero(allowed):
        mask[token // 32] |= np.uint32(1 << int(token) % 32)
    return mask


@given(allowed=arrays(np.bool_, st.integers(1, 100)))
def test_bits_of_a_mask(allowed: np.ndarray) -> None:
    np.testing.assert_array_equal(mask_bits(mask_of(allowed), len(allowed)), allowed)


@given(row=logit_rows, data=st.data())
def test_a_mask_leaves_what_a_smaller_vocabulary_would(
    row: np.ndarray, data: st.DataObject
) -> None:
    """Limits count what the mask allows, as if there were no other tokens."""
    allowed = data.draw(arrays(np.bool_, len(row)))
    allowed[data.draw(st.integers(0, len(row) - 1))] = True
    limits = (
        data.draw(st.integers(0, 5)),
        data.draw(st.floats(0.1, 1)),
        data.draw(st.floats(0, 1)),
    )
    masked = limited(row, PLAIN, mask_of(allowed))
    kept = [token for token in allowed_tokens(masked, *limits) if masked[token] > -np.inf]
    alone = np.flatnonzero(allowed)[allowed_tokens(row[allowed], *limits)]
    assert kept == alone.tolist()
    token = choose(row, PLAIN, 5, mask_of(allowed))
    assert allowed[token]


def test_bias_comes_before_temperature_and_counts_for_greedy() -> None:
    row = np.array([1, 2, 3], np.float32)
    biased = Draw(logit_bias=((0, 2.5), (2, -np.inf)))
    assert limited(row, biased, None).tolist() == [3.5, 2, -np.inf]
    assert choose(row, Draw(logit_bias=((0, 2.5),)), 5) == 0
    assert choose(row, Draw(logit_bias=((2, -np.inf),)), 5) == 1
    # The bias is scaled with the logit: 1.5 becomes 1500.
    cold = Draw(temperature=1e-3, seed=3, logit_bias=((1, 1.5),))
    assert choose(row, cold, 5) == 1
    assert row.tolist() == [1, 2, 3]


def test_where_all_is_banned_the_lowest_id_of_the_mask_comes() -> None:
    row = np.array([1, 2, 3], np.float32)
    bans = ((1, -np.inf), (2, -np.inf))
    for temperature in (0.0, 1.0):
        draw = Draw(temperature=temperature, min_p=0.5, top_p=0.5, logit_bias=bans)
        assert choose(row, draw, 5, np.array([6], np.uint32)) == 1
        assert choose(row, replace(draw, logit_bias=((0, -np.inf), *bans)), 5) == 0
