"""Summaries of repeated measurements: medians and percentiles, never a mean alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def summary(values: Sequence[float] | npt.NDArray[np.floating]) -> dict[str, float | int]:
    """`runs`, `min`, `median`, `max` of a few repeats."""
    v = np.asarray(values, dtype=np.float64)
    if v.size == 0:
        raise ValueError("expected at least one measurement, got none")
    return {
        "runs": int(v.size),
        "min": float(v.min()),
        "median": float(np.median(v)),
        "max": float(v.max()),
    }


def distribution(values: npt.NDArray[np.floating]) -> dict[str, float | int]:
    """The summary, and the percentiles that a tail shows in."""
    v = np.asarray(values, dtype=np.float64).ravel()
    tail = {f"p{q}": float(np.percentile(v, q)) for q in (1, 10, 90, 99)}
    return summary(v) | {"mean": float(v.mean())} | tail
