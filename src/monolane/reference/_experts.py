"""The choice of a router: which experts serve a token, and with which weights.

Shape legend: T tokens, E experts.
"""

import numpy as np

from monolane.model import Experts
from monolane.reference._operations import Floats, softmax


def choose_experts(logits_TE: Floats, experts: Experts) -> Floats:
    """Return the weight of each expert for each token, [T, E]: 0 where it is not chosen.

    The largest logits are chosen, of equal ones the lowest index: a stable sort keeps their order.
    """
    chosen = np.argsort(-logits_TE, axis=-1, kind="stable")[:, : experts.chosen]
    weights = np.take_along_axis(softmax(logits_TE), chosen, axis=-1)
    if experts.normalised:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    found = np.zeros_like(logits_TE)
    np.put_along_axis(found, chosen, weights, axis=-1)
    return found
