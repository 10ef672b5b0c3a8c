"""Keys and values as a cache stores them, and back: what rounding each dtype means.

Shape legend: h width of a head, G groups of 32 columns of it.
"""

from collections.abc import Callable

import ml_dtypes
import numpy as np

from monolane.errors import ConfigError
from monolane.model import find_cache_format
from monolane.reference._operations import Floats

GROUP = 32


Rounding = Callable[[Floats], Floats]


def find_rounding(cache_dtype: str, head_dim: int) -> Rounding:
    """Return what rounds keys or values [.., h]; "auto": nothing is rounded.

    RequestError if there is no such dtype, ConfigError if it does not fit the width of a head.
    """
    name = "float32" if cache_dtype == "auto" else cache_dtype
    if find_cache_format(name).coded and head_dim % GROUP:
        raise ConfigError(
            f"cache: expected heads whose width is a multiple of {GROUP}, which share a scale, "
            f"got {head_dim}; use bfloat16 for keys and values"
        )
    return _ROUNDINGS[name]


def _as(dtype: type) -> Callable[[Floats], Floats]:
    def rounded(x: Floats) -> Floats:
        with np.errstate(over="ignore"):
            return x.astype(dtype).astype(np.float32)

    return rounded


def _int8(x: Floats) -> Floats:
    groups = x.reshape(*x.shape[:-1], -1, GROUP)
    most: Floats = np.abs(groups).max(axis=-1, keepdims=True)
    return _coded(groups, most / np.float32(127), -127, 127).reshape(x.shape)


def _int4(x: Floats) -> Floats:
    """Of two scales the one with the smaller squared error: max / 7, or the largest as code -8."""
    groups = x.reshape(*x.shape[:-1], -1, GROUP)  # [.., G, 32]
    place = np.abs(groups).argmax(axis=-1, keepdims=True)
    largest: Floats = np.take_along_axis(groups, place, axis=-1)
    size: Floats = np.abs(largest)
    even = _coded(groups, size / np.float32(7), -8, 7)
    skewed = _coded(groups, largest / np.float32(-8), -8, 7)
    errors = [np.square(groups.astype(np.float64) - y).sum(axis=-1) for y in (even, skewed)]
    better = (errors[1] < errors[0])[..., None]
    return np.where(better, skewed, even).reshape(x.shape)


def _coded(groups: Floats, scale: Floats, lowest: int, highest: int) -> Floats:
    """Return code * scale, the scale as float16, codes nearest to x / scale, ties to even."""
    with np.errstate(over="ignore"):
        stored = scale.astype(np.float16).astype(np.float32)
    divisor = np.where(stored == 0, np.float32(1), stored)
    ideal = np.where(stored == 0, np.float32(0), groups) / divisor
    codes: Floats = np.clip(np.rint(ideal), lowest, highest)
    return codes * stored


_ROUNDINGS: dict[str, Callable[[Floats], Floats]] = {
    "float32": lambda x: x,
    "bfloat16": _as(ml_dtypes.bfloat16),
    "float16": _as(np.float16),
    "int8": _int8,
    "int4": _int4,
}
