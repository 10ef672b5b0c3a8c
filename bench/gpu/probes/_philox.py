"""Philox4x32-10 and the Gumbel noise of the sampling definition, in NumPy: the yardstick."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def first_words(seed: int, tokens: npt.NDArray[np.uint32], position: int) -> npt.NDArray[np.uint32]:
    """First word of Philox4x32-10(key = seed, counter = (token, position, 0, 0))."""
    c0 = tokens.astype(np.uint64)
    c1 = np.full_like(c0, position)
    c2, c3 = np.zeros_like(c0), np.zeros_like(c0)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (
            (p1 >> _32) ^ c1 ^ np.uint64(k0),
            p1 & _LOW,
            (p0 >> _32) ^ c3 ^ np.uint64(k1),
            p0 & _LOW,
        )
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return c0.astype(np.uint32)


def gumbel(seed: int, tokens: npt.NDArray[np.uint32], position: int) -> npt.NDArray[np.float32]:
    """u = ((w >> 8) + 0.5) * 2^-24, g = -log(-log(u)): in double, rounded once."""
    w = first_words(seed, tokens, position)
    u = ((w >> np.uint32(8)).astype(np.float64) + 0.5) * 2.0**-24
    out: npt.NDArray[np.float32] = (-np.log(-np.log(u))).astype(np.float32)
    return out
