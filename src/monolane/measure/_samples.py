"""Several runs of one thing as the figures that a record carries."""

import statistics
from collections.abc import Sequence
from typing import Any


def summary(samples: Sequence[float], unit: str) -> dict[str, Any]:
    """Return runs, min, median and max of samples, and their unit."""
    assert samples
    return {
        "runs": len(samples),
        "unit": unit,
        "min": min(samples),
        "median": statistics.median(samples),
        "max": max(samples),
    }
