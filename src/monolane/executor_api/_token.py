"""What comes back from an executor: tokens, and how probable they were."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# In a token's place where its logits have no finite peak: NaN is among them, or the largest is
# infinite. The weights are broken, or too large for the arithmetic. It ends its sequence.
NO_TOKEN = -1
GONE = -2  # in a token's place where a slot was to leave its epoch, and has


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probability of a token under the model itself, before any temperature."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # the most probable tokens, best first


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A token as it leaves an epoch. A pass that accepts several tokens gives several events."""

    slot: int
    token_id: int  # or NO_TOKEN, or GONE
    time_ns: int  # time.perf_counter_ns() when it was drawn
    logprob: TokenLogprob | None = None
    drafted: int = 0  # tokens that were drafted for its pass, with the first that the pass gave
    accepted: int = 0  # which of them this is, from 1 on; 0: none
    drafter: str = ""  # whose draft that was, one of DRAFTERS


def describe_logprobs(logits_V: npt.NDArray[np.float32], token_id: int, count: int) -> TokenLogprob:
    """Return what is reported of a token drawn from float32 logits [V], with ``count`` others.

    The norm is summed in float64 and each result is rounded to float32 once, as
    csrc/sample/sampler.cpp does. Among equals the lower id comes first.
    """
    wide_V = logits_V.astype(np.float64)
    peak = wide_V.max()
    norm = peak + np.log(np.exp(wide_V - peak).sum())
    logprob_V = (wide_V - norm).astype(np.float32)
    best = _best(wide_V, min(count, wide_V.size))
    return TokenLogprob(
        token_id, float(logprob_V[token_id]), tuple((int(i), float(logprob_V[i])) for i in best)
    )


def _best(values: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.intp]:
    """Return the indices of the largest values; sorting all of a vocabulary would take ms."""
    if count == 0:
        return np.empty(0, np.intp)
    least = np.partition(values, values.size - count)[values.size - count]
    found = np.flatnonzero(values >= least)  # ascending, so that ties stay in order
    order: npt.NDArray[np.intp] = found[np.argsort(-values[found], kind="stable")][:count]
    return order
