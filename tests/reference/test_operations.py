"""Each operation against its definition, written out in loops and in float64."""

import numpy as np
import pytest

from monolane.model import NEVER, NOW, Reduce
from monolane.reference import attend, gelu_tanh, reduce, rms_norm, rotate, silu, softmax

rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def test_rms_norm() -> None:
    x, scale = normal(2, 3, 8), normal(2, 8)
    for lane in range(2):
        for token in range(3):
            row = x[lane, token].astype(np.float64)
            wanted = row / np.sqrt(np.mean(row**2) + 1e-5) * scale[lane]
            np.testing.assert_allclose(rms_norm(x, scale, 1e-5)[lane, token], wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("style", "pairs"),
    [("interleaved", [(0, 1), (2, 3), (4, 5)]), ("half", [(0, 3), (1, 4), (2, 5)])],
)
def test_rotate_turns_pairs(style: str, pairs: list[tuple[int, int]]) -> None:
    x = normal(1, 2, 1, 6)
    frequencies = np.array([1.0, 0.5, 0.1], np.float32)
    turned = rotate(x, np.array([3, 7]), frequencies, style)
    for t, position in enumerate((3, 7)):
        for (a, b), frequency in zip(pairs, frequencies, strict=True):
            before = x[0, t, 0, a] + 1j * x[0, t, 0, b]
            after = before * np.exp(1j * position * float(frequency))
            np.testing.assert_allclose(
                [turned[0, t, 0, a], turned[0, t, 0, b]], [after.real, after.imag], atol=1e-5
            )


@pytest.mark.parametrize("window", [None, 1, 3])
def test_attend_sees_what_it_may(window: int | None) -> None:
    lanes, first, width, heads, kv_heads, dim = 2, 4, 3, 4, 2, 6
    q = normal(lanes, width, heads, dim)
    k, v = normal(lanes, first + width, kv_heads, dim), normal(lanes, first + width, kv_heads, dim)
    out = attend(q, k, v, first, window).reshape(lanes, width, heads, dim)
    for lane in range(lanes):
        for t in range(width):
            position = first + t
            begin = 0 if window is None else max(0, position - window + 1)
            for head in range(heads):
                kv = head * kv_heads // heads
                keys = k[lane, begin : position + 1, kv].astype(np.float64)
                score = np.exp(keys @ q[lane, t, head] / np.sqrt(dim))
                wanted = (score / score.sum()) @ v[lane, begin : position + 1, kv]
                np.testing.assert_allclose(out[lane, t, head], wanted, rtol=1e-4, atol=1e-5)


def test_softmax_of_huge_scores() -> None:
    row = softmax(np.array([1e30, 0, -np.inf], np.float32))
    np.testing.assert_array_equal(row, [1, 0, 0])


def test_silu_without_overflow() -> None:
    x = np.array([-1e4, -1, 0, 1, 1e4], np.float32)
    np.testing.assert_allclose(silu(x), [0, -0.26894143, 0, 0.7310586, 1e4], rtol=1e-6, atol=0)


def test_gelu_tanh() -> None:
    # GELU itself, x Phi(x), is 0.841345 at 1: the formula with tanh is apart from it at digit 4.
    x = np.array([-1e4, -1, 0, 1, 1e4], np.float32)
    np.testing.assert_allclose(gelu_tanh(x), [0, -0.15880801, 0, 0.841192, 1e4], rtol=1e-6, atol=0)


def test_reduce_rules() -> None:
    outputs = [normal(4, 2, 3) for _ in range(3)]
    own = outputs[-1]
    np.testing.assert_allclose(reduce(NEVER, outputs), 2 * own, rtol=1e-6)
    summed = np.broadcast_to(own.sum(0), own.shape)
    np.testing.assert_allclose(reduce(NOW, outputs), summed, rtol=1e-5)
    late = reduce(Reduce(2), outputs)
    for lane in range(4):
        others = sum(outputs[0][j] for j in range(4) if j != lane)
        np.testing.assert_allclose(late[lane], own[lane] + others, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("style", ["interleaved", "half"])
def test_an_amplitude_stretches_pairs(style: str) -> None:
    x, frequencies = normal(1, 2, 1, 6), np.array([1.0, 0.5, 0.1], np.float32)
    positions = np.array([3, 7])
    stretched = rotate(x, positions, frequencies, style, amplitude=1.25)
    np.testing.assert_allclose(
        stretched, 1.25 * rotate(x, positions, frequencies, style), rtol=1e-5
    )


def test_attend_scales_scores() -> None:
    q, k, v = normal(1, 3, 2, 6), normal(1, 3, 2, 6), normal(1, 3, 2, 6)
    given = attend(q, k, v, 0, None, scale=0.3)
    np.testing.assert_allclose(
        given, attend(q * np.float32(0.3 * np.sqrt(6)), k, v, 0, None), rtol=1e-5
    )
