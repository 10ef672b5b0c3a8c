"""Activations as the kernels of codes round them (csrc/kernels/products/panels.h), and such to
try."""

import numpy as np

FINE_GROUPS = (
    4  # times the mean square of the groups' largest numbers: from there on a group is fine
)
FINE_STEPS = 128  # of a step, in which fine groups are rounded


def rounded(x: np.ndarray, *, fine: bool = True) -> np.ndarray:
    """What activations [T, K] become before they meet codes, in float64; not ``fine``: 8 bits."""
    groups = x.reshape(len(x), -1, 32)
    top = np.abs(groups).max(axis=-1, keepdims=True)
    factor = np.float32(127) / np.where(top == 0, np.float32(1), top)
    scale = top / np.float32(127)
    codes = np.rint(groups * factor)
    found = codes * scale.astype(np.float64)
    if fine:
        rest = np.rint((groups - scale * codes) * (np.float32(FINE_STEPS) * factor))
        found += (
            np.where(fine_groups(x)[..., None], rest * scale.astype(np.float64), 0) / FINE_STEPS
        )
    meaning: np.ndarray = found.reshape(x.shape)
    return meaning


def fine_groups(x: np.ndarray) -> np.ndarray:
    """Which groups of each token are fine, bool [T, K / 32]."""
    top = np.abs(x.reshape(len(x), -1, 32)).max(axis=-1).astype(np.float64)
    fine: np.ndarray = top**2 >= FINE_GROUPS * (top**2).mean(axis=-1, keepdims=True)
    return fine & (top > 0)


def heavy_tailed(rng: np.random.Generator, tokens: int, cols: int) -> np.ndarray:
    """Normal numbers, an eighth of whose groups are 30 times as large: so some of them are fine.

    Which are differs from token to token, but that a few are so for all and a few for none.
    """
    groups = cols // 32
    size = np.where(rng.random((tokens, groups)) < 0.125, 30, 1)
    size[:, rng.random(groups) < 0.1] = 30
    size[:, rng.random(groups) < 0.1] = 1
    x = rng.standard_normal((tokens, groups, 32)) * size[..., None]
    return x.reshape(tokens, cols).astype(np.float32)
