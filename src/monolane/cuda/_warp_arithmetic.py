"""float32 arithmetic as the kernel's warps do it: sums in their order, powers, GELU, caps."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

WARP = 32  # threads
NOTHING = np.float32(-3.402823466e38)  # the maximum of no scores
LOG2E = np.float32(1.4426950408889634)
# 2^x on -1/2 to 1/2, from the highest power down: exp2_fast in kernels/primitives.cuh.
_POWERS = (1.5353362e-4, 1.3398875e-3, 9.618437e-3, 5.5503324e-2, 0.24022648, 0.6931472, 1.0)
_ROUNDER = np.float32(12582912.0)


def warp_sum(x: Floats) -> Floats:
    """Return the sums of the last axis as a warp adds: 32 apart first, then across its threads."""
    short = -x.shape[-1] % WARP
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, short)])
    rows = padded.reshape(*x.shape[:-1], -1, WARP)
    total = np.zeros((*x.shape[:-1], WARP), np.float32)
    for i in range(rows.shape[-2]):
        total = total + rows[..., i, :]
    return butterfly(total)


def pair_sum(x: Floats) -> Floats:
    """Return the sums of heads in pairs [..., h / 2, 2] as a warp adds them: a thread both."""
    short = -x.shape[-2] % WARP
    padded = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, short), (0, 0)])
    rows = padded.reshape(*x.shape[:-2], -1, WARP, 2)  # [..., turn, thread, number]
    total = np.zeros((*x.shape[:-2], WARP), np.float32)
    for i in range(rows.shape[-3]):
        total = (total + rows[..., i, :, 0]) + rows[..., i, :, 1]
    return butterfly(total)


def butterfly(x: Floats) -> Floats:
    """Return the sum of 32 threads' numbers, the last axis, as every thread gets it."""
    thread = np.arange(WARP)
    for mask in (16, 8, 4, 2, 1):
        x = x + x[..., thread ^ mask]
    found: Floats = x[..., 0]
    return found


def remainder(was: Floats, top: Floats) -> Floats:
    """Return how much of a sum remains when its maximum becomes ``top``."""
    return np.where(was == NOTHING, np.float32(0), exp2(was - top))


def gelu_slope(gate: Floats) -> Floats:
    """Return the argument of the logistic function that GELU's approximation is."""
    cubed = gate * gate * gate
    slope: Floats = np.float32(1.5957691216057308) * (gate + np.float32(0.044715) * cubed)
    return slope


def capped(x: Floats, cap: float) -> Floats:
    """Return ``capped`` of kernels/block.cuh."""
    limit, one, two = np.float32(cap), np.float32(1), np.float32(2)
    size = (np.abs(x) / limit).astype(np.float32)
    bent = limit * (one - two / (exp2(two * LOG2E * size) + one))
    return np.where(x < 0, -bent, bent).astype(np.float32)


def exp2(x: Floats) -> Floats:
    """Return 2^x, as exp2_fast in kernels/primitives.cuh has it."""
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = x + _ROUNDER
        rest = x - (shifted - _ROUNDER)
        y = np.full_like(rest, np.float32(_POWERS[0]))
        for power in _POWERS[1:]:
            y = _fused(y, rest, np.float32(power))
        bits = y.view(np.uint32) + (shifted.view(np.uint32) << np.uint32(23))
        found = np.where(x < -126, np.float32(0), bits.view(np.float32))
        found = np.where(x >= 128, np.float32(np.inf), found)
        return np.where(np.isnan(x), x, found).astype(np.float32)


def _fused(a: Floats, b: Floats, c: np.float32) -> Floats:
    """Return a b + c, rounded once."""
    product = a.astype(np.float64) * b  # exact
    total = product + c
    # What the sum lost, exactly; where it lost anything the last bit becomes odd, so that rounding
    # once more, to 24 bits, is as rounding once.
    back = total - product
    lost = (product - (total - back)) + (c - back)
    bits = total.view(np.int64)
    toward = np.where((lost > 0) == (total > 0), 1, -1)
    odd = np.where((lost != 0) & (bits & 1 == 0), bits + toward, bits)
    found: Floats = odd.view(np.float64).astype(np.float32)
    return found
