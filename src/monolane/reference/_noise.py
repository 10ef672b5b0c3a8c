"""Counter-based Gumbel noise: a draw depends on (seed, position, token) and on nothing else.

The definition that every executor reproduces; docs/sampling.md tells it in words.
Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

import numpy as np
import numpy.typing as npt

from monolane.reference._operations import Floats

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW, _BITS = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(
    key: tuple[int, int], counter: tuple[npt.ArrayLike, ...]
) -> list[npt.NDArray[np.uint64]]:
    """Return the four output words, as uint64, of Philox4x32-10; counters may be arrays."""
    c0, c1, c2, c3 = (np.asarray(word, np.uint64) for word in counter)
    k0, k1 = key
    for _ in range(10):
        left, right = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (right >> _BITS) ^ c1 ^ np.uint64(k0),
            right & _LOW,
            (left >> _BITS) ^ c3 ^ np.uint64(k1),
            left & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def gumbel_noise(seed: int, position: int, token_ids: npt.ArrayLike) -> Floats:
    """Return the noise of tokens at a position: float32, shaped as ``token_ids``.

    The logarithms are taken in float64 and rounded once. In float32 u would lose its last bit above
    one half, and the largest u would round to 1, whose noise is infinite.
    """
    key = (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)
    word = philox(key, (token_ids, position, 0, 0))[0]
    u = ((word >> np.uint64(8)).astype(np.float64) + 0.5) * 2.0**-24  # (0, 1), exact
    return (-np.log(-np.log(u))).astype(np.float32)
