"""The choice of a router: which experts serve a token, and with which weights.

Shape legend: T tokens, E experts.
"""

import numpy as np
import numpy.typing as npt

from monolane.model import Experts
from monolane.reference._operations import Floats, sigmoid, softmax


def choose_experts(
    logits_TE: Floats, experts: Experts, correction_E: Floats | None = None
) -> Floats:
    """Return the weight of each expert for each token, [T, E]: 0 where it is not chosen.

    What is chosen is told in model/_experts.py. The largest logits, or scores with their
    ``correction_E``; of equal ones the lowest index: a stable sort keeps their order.
    """
    by_sigmoid = experts.scores == "sigmoid"
    scores_TE = sigmoid(logits_TE) if by_sigmoid else softmax(logits_TE)
    ranked_TE = scores_TE if by_sigmoid else logits_TE
    if correction_E is not None:
        ranked_TE = ranked_TE + correction_E
    if experts.chosen_groups < experts.groups:
        ranked_TE = np.where(_in_chosen_groups(ranked_TE, experts), ranked_TE, -np.inf)
    chosen = _largest(ranked_TE, experts.chosen)
    weights = np.take_along_axis(scores_TE, chosen, axis=-1)
    if experts.normalised:
        # Sigmoids may all be zero. Beside other sums this is none, in float32.
        weights = weights / (weights.sum(axis=-1, keepdims=True) + np.float32(1e-20))
    found = np.zeros_like(logits_TE)
    np.put_along_axis(found, chosen, weights * np.float32(experts.scale), axis=-1)
    return found


def _in_chosen_groups(ranked_TE: Floats, experts: Experts) -> npt.NDArray[np.bool_]:
    """Tell of each expert whether its group is one of the chosen ones: [T, E]."""
    grouped = ranked_TE.reshape(len(ranked_TE), experts.groups, -1)
    best = -np.sort(-grouped, axis=-1)[..., : experts.group_best]
    groups = np.zeros(grouped.shape[:2], np.bool_)
    np.put_along_axis(groups, _largest(best.sum(axis=-1), experts.chosen_groups), True, axis=-1)
    return np.repeat(groups, grouped.shape[-1], axis=-1)


def _largest(x: Floats, count: int) -> npt.NDArray[np.int64]:
    """Return where the largest of the last axis are, of equal ones the first."""
    return np.argsort(-x, axis=-1, kind="stable")[..., :count]
