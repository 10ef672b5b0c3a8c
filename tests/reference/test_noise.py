"""The noise: Philox by its authors' known answers, and the native twin bit by bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolane._core import gumbel_noise as native_noise
from monolane.reference import gumbel_noise, philox

ONES = 0xFFFFFFFF


# Known answers of Philox4x32-10 that the authors ship with Random123 (kat_vectors).
@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0,) * 4, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    assert tuple(int(word) for word in philox(key, counter)) == words


@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**32 - 1),
    first=st.integers(0, 2**32 - 600),
)
def test_the_native_twin_draws_the_same_bits(seed: int, position: int, first: int) -> None:
    native = native_noise(seed, position, first, 600)
    ours = gumbel_noise(seed, position, np.arange(first, first + 600, dtype=np.uint64))
    np.testing.assert_array_equal(native, ours, strict=True)


def test_noise_is_finite_at_both_ends_and_distributed_as_gumbel() -> None:
    noise = gumbel_noise(7, 3, np.arange(1 << 18))
    assert np.isfinite(noise).all()
    # Mean: Euler's constant; variance: pi^2 / 6. Bounds: 5 standard errors of 2^18 draws.
    assert abs(noise.mean() - 0.5772157) < 5 * np.sqrt(1.645 / (1 << 18))
    assert abs(noise.var() - 1.644934) < 5 * np.sqrt(14.6 / (1 << 18))


def test_the_largest_uniform_does_not_round_to_one() -> None:
    u = ((np.uint64(ONES) >> np.uint64(8)).astype(np.float64) + 0.5) * 2.0**-24
    assert u < 1
    assert np.float32(u) == 1  # why the logarithm is not taken in float32


def test_draws_depend_on_seed_position_and_token_alone() -> None:
    whole = gumbel_noise(5, 9, np.arange(100))
    np.testing.assert_array_equal(gumbel_noise(5, 9, [42, 7]), whole[[42, 7]])
    assert not np.array_equal(gumbel_noise(5, 10, np.arange(100)), whole)
    assert not np.array_equal(gumbel_noise(6, 9, np.arange(100)), whole)
    assert not np.array_equal(gumbel_noise(5 + 2**32, 9, np.arange(100)), whole)


def test_native_limits() -> None:
    with pytest.raises(ValueError, match="expected first_token"):
        native_noise(0, 0, 2**32 - 1, 2)
    assert native_noise(0, 0, 2**32 - 1, 1).shape == (1,)
    with pytest.raises(TypeError):
        native_noise(-1, 0, 0, 1)
