"""Choosing the next token from logits, as defined once for all executors (docs/sampling.md)."""

import numpy as np
import numpy.typing as npt

from monolane.reference._noise import gumbel_noise
from monolane.reference._operations import Floats


def choose(
    logits_V: Floats,
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
    position: int,
) -> int:
    """Return the id of the next token; ``position`` is the one that it will take.

    Temperature 0 is the plain argmax. Ties go to the lowest id.
    """
    if temperature == 0:
        return int(np.argmax(logits_V))
    scaled_V = logits_V / np.float32(temperature)
    allowed = allowed_tokens(scaled_V, top_k, top_p, min_p)
    perturbed = scaled_V[allowed] + gumbel_noise(seed, position, allowed)
    return int(allowed[np.argmax(perturbed)])


def allowed_tokens(
    scaled_V: Floats, top_k: int, top_p: float, min_p: float
) -> npt.NDArray[np.int64]:
    """Return the ids that pass top-k, then top-p, then min-p, in ascending order.

    Tokens are ranked by scaled logit, the lower id first where two are equal.
    top-k keeps the first k (0: all). top-p keeps the shortest front of those whose probabilities,
    normalised over what top-k kept, reach top_p; always at least one. min-p keeps the tokens at
    least min_p times as probable as the first.
    """
    ranked = np.argsort(-scaled_V, kind="stable")
    if top_k > 0:
        ranked = ranked[:top_k]
    # Relative to the first, and in float64: no two executors differ at the edge of a front by the
    # rounding of a sum.
    probability = np.exp((scaled_V[ranked] - scaled_V[ranked[0]]).astype(np.float64))
    if top_p < 1:
        before = np.cumsum(probability) - probability
        keep = max(1, int(np.count_nonzero(before < top_p * probability.sum())))
        ranked, probability = ranked[:keep], probability[:keep]
    if min_p > 0:
        ranked = ranked[probability >= min_p]
    return np.sort(ranked)


def log_probabilities(logits_V: Floats) -> Floats:
    """Return the natural logarithm of the model's own distribution, before any temperature."""
    shifted = logits_V - logits_V.max()
    log_softmax: Floats = shifted - np.log(np.exp(shifted).sum())
    return log_softmax
