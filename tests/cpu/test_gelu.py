"""GELU and GPT-OSS's SwiGLU on every instruction set, against float64; u is float32's roundoff."""

import numpy as np
import pytest

from monolane._core import kernels

U = 2.0**-24
every_isa = pytest.mark.parametrize("isa", kernels.supported())


@every_isa
@pytest.mark.parametrize("count", [1, 15, 16, 17, 1000])
def test_values(isa: str, count: int) -> None:
    """x / (1 + e^-a), a the exponent: as far from exact as these steps may be.

    Two constants, a square, a sum and a product err by 5 u of a, which is the relative error of its
    exponential beside that one's own 4 u; sum, quotient and product add 3 u. Below a = -88.7 the
    exponential is inf and the result 0: off by under 12 e^-88.7 = 4e-38 for gates above -12.
    """
    rng = np.random.default_rng(count)
    gate = rng.uniform(-12, 12, count).astype(np.float32)
    up = rng.standard_normal(count).astype(np.float32)
    x = gate.astype(np.float64)
    exponent = 2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    exact = x / (1 + np.exp(-exponent)) * up
    by_tanh = 0.5 * x * (1 + np.tanh(exponent / 2)) * up
    np.testing.assert_allclose(exact, by_tanh, rtol=0, atol=1e-13)
    found = kernels.gelu_tanh_times(isa, gate, up)
    relative = 1.01 * U * (7 + 5 * np.abs(exponent))
    tiny = 4e-38 * np.abs(up) + 2.0**-149
    assert np.all(np.abs(found - exact) <= relative * np.abs(exact) + tiny)


@every_isa
def test_far_from_zero(isa: str) -> None:
    far = np.array([-3e38, -1e20, -50, 0, 50, 1e20, 3e38], np.float32)
    found = kernels.gelu_tanh_times(isa, far, np.ones(7, np.float32))
    assert found.tolist() == [0, 0, 0, 0, *far[4:].tolist()]


@every_isa
@pytest.mark.parametrize("count", [1, 15, 16, 17, 1000])
def test_clamped_values(isa: str, count: int) -> None:
    """g * sigmoid(1.702 g) * (u + 1): an exponent errs by u of itself, its exponential by 4 u more,
    and a sum, a quotient, a sum and a product add 4 u.
    """
    rng = np.random.default_rng(count)
    gate, up = rng.uniform(-12, 12, (2, count)).astype(np.float32)
    g, slope = np.minimum(gate, 7).astype(np.float64), np.float64(np.float32(1.702))
    exact = g / (1 + np.exp(-slope * g)) * (np.clip(up, -7, 7).astype(np.float64) + 1)
    found = kernels.clamped_swiglu(isa, gate, up)
    relative = 1.01 * U * (8 + np.abs(slope * g))
    assert np.all(np.abs(found - exact) <= relative * np.abs(exact))


@every_isa
def test_clamped_ends(isa: str) -> None:
    ends = np.array([-3e38, 3e38, -3e38, 3e38, np.nan, 0], np.float32)
    ups = np.array([3e38, 3e38, -3e38, -3e38, 0, np.nan], np.float32)
    found = kernels.clamped_swiglu(isa, ends, ups)
    np.testing.assert_allclose(found, [0, 56, 0, -42, np.nan, np.nan], rtol=1e-5)


def test_arrays_of_two_sizes_are_refused() -> None:
    one, two = np.zeros(1, np.float32), np.zeros(2, np.float32)
    with pytest.raises(ValueError, match="expected as many ups as gates, got 1"):
        kernels.gelu_tanh_times("portable", two, one)
