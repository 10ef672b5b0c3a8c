"""Choosing the next token from logits, as defined once for all executors (docs/sampling.md).

Shape legend: V vocabulary, M = ceil(V / 32) words of a mask.
"""

from collections import Counter

import numpy as np
import numpy.typing as npt

from monolane.executor_api import NO_TOKEN, Draw
from monolane.reference._noise import gumbel_noise
from monolane.reference._operations import Floats
from monolane.reference._penalties import penalised


def choose(
    logits_V: Floats,
    draw: Draw,
    position: int,
    mask_M: npt.NDArray[np.uint32] | None = None,
    seen: Counter[int] | None = None,
) -> int:
    """Return the id of the next token; ``position`` is the one that it will take.

    ``seen`` is what ``count_seen`` says of the tokens before it; a draw without penalties needs
    none.

    NO_TOKEN where the logits have no finite peak: NaN is among them, or the largest is infinite.
    Temperature 0 is the plain argmax. Ties go to the lowest id. Bit t % 32 of word t // 32 of the
    mask says whether token t may come: at least one may.
    """
    if not np.isfinite(logits_V.max()):
        return NO_TOKEN
    logits_V = limited(logits_V, draw, mask_M, seen)
    if logits_V.max() == -np.inf:  # every token that may come is banned
        return 0 if mask_M is None else int(np.argmax(mask_bits(mask_M, len(logits_V))))
    if draw.temperature == 0:
        return int(np.argmax(logits_V))
    with np.errstate(over="ignore"):
        scaled_V = logits_V / np.float32(draw.temperature)
    if not np.isfinite(scaled_V.max()):  # there is nothing to add noise to
        return int(np.argmax(logits_V))
    allowed = allowed_tokens(scaled_V, draw.top_k, draw.top_p, draw.min_p)
    perturbed = scaled_V[allowed] + gumbel_noise(draw.seed, position, allowed)
    return int(allowed[np.argmax(perturbed)])


def limited(
    logits_V: Floats,
    draw: Draw,
    mask_M: npt.NDArray[np.uint32] | None,
    seen: Counter[int] | None = None,
) -> Floats:
    """Return the logits with biases and penalties, and -inf where the mask has no bit."""
    limited_V = logits_V.copy()
    for token, bias in draw.logit_bias:
        limited_V[token] += np.float32(bias)
    if draw.penalises:
        assert seen is not None, "penalties look at the tokens before"
        limited_V = penalised(limited_V, draw, seen)
    if mask_M is not None:
        limited_V[~mask_bits(mask_M, len(logits_V))] = -np.inf
    return limited_V


def mask_bits(mask_M: npt.NDArray[np.uint32], vocab: int) -> npt.NDArray[np.bool_]:
    """Return a mask as booleans, [V]."""
    octets = mask_M.astype("<u4").view(np.uint8)
    return np.unpackbits(octets, bitorder="little")[:vocab].astype(np.bool_)


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
