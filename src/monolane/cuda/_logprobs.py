"""Log-probabilities from the logits that a token was drawn from, as every backend reports them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural log-probability of a drawn token under the model itself, and the best tokens'."""

    logprob: float
    top: tuple[tuple[int, float], ...]  # best first; the lower token first among equals


def describe_logprobs(logits: npt.NDArray[np.float32], token: int, count: int) -> Logprobs:
    """Return what is reported of a token drawn from float32 logits [V].

    The norm is summed in float64 and each result rounded to float32 once, as csrc/choose.cpp does.
    """
    wide = logits.astype(np.float64)
    peak = wide.max()
    norm = peak + np.log(np.exp(wide - peak).sum())
    best = _best(wide, min(count, wide.size))
    top = tuple((int(i), float(np.float32(wide[i] - norm))) for i in best)
    return Logprobs(float(np.float32(wide[token] - norm)), top)


def _best(values: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.intp]:
    """Return the indices of the largest values; sorting all of a vocabulary would take ms."""
    if count == 0:
        return np.empty(0, np.intp)
    least = np.partition(values, values.size - count)[values.size - count]
    found = np.flatnonzero(values >= least)  # ascending, so that ties stay in order
    order: npt.NDArray[np.intp] = found[np.argsort(-values[found], kind="stable")][:count]
    return order
