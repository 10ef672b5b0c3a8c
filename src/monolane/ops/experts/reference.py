"""A mixture of experts, as its definition: a router's choice, and what is made of it.

Shape legend: T tokens, E experts, D hidden, X inner width of an expert.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from monolane.ops._names import Role
from monolane.ops.experts.spec import Experts
from monolane.reference import (
    GATES,
    Computation,
    Floats,
    LayerPass,
    linear,
    relu_squared,
    rms_norm,
    sigmoid,
    softmax,
    softplus,
)

_SCORES: Mapping[str, Callable[[Floats], Floats]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "sqrtsoftplus": lambda x: np.sqrt(softplus(x)),
}


def choose_experts(
    logits_TE: Floats,
    experts: Experts,
    correction_E: Floats | None = None,
    scales_E: Floats | None = None,
    told_Tk: npt.NDArray[np.int64] | None = None,
) -> Floats:
    """Return the weight of each expert for each token, [T, E]: 0 where it is not chosen.

    What is chosen is told in spec.py. The largest logits, or scores with their
    ``correction_E`` or added up; of equal ones the lowest index: a stable sort keeps their order.
    Where they are ``told`` no logit chooses.
    """
    scores_TE = _SCORES[experts.scores](logits_TE)
    by_scores = correction_E is not None or experts.group_best > 1
    ranked_TE = scores_TE if by_scores else logits_TE
    if correction_E is not None:
        ranked_TE = ranked_TE + correction_E
    if experts.chosen_groups < experts.groups:
        ranked_TE = np.where(_in_chosen_groups(ranked_TE, experts), ranked_TE, -np.inf)
    chosen = _largest(ranked_TE, experts.chosen) if told_Tk is None else told_Tk
    weights = np.take_along_axis(scores_TE, chosen, axis=-1)
    if experts.normalised:
        # Sigmoids may all be zero. Beside other sums this is none, in float32.
        weights = weights / (weights.sum(axis=-1, keepdims=True) + np.float32(1e-20))
    weights = weights * np.float32(experts.scale)
    found = np.zeros_like(logits_TE)
    weights = weights if scales_E is None else weights * scales_E[0, chosen]
    # A table may tell an expert twice, whose weights then add up.
    np.add.at(found, (np.arange(len(found))[:, None], chosen), weights)
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


def _run(experts: Experts, p: LayerPass, x_1TD: Floats) -> Floats:
    """Add up what each token's experts make of it, in their order, then what all share."""
    read_1TD = x_1TD
    if experts.router_norm:
        read_1TD = read_by_router(p.stream, p.weights[Role.ROUTER_NORM], p.config.norm_eps)
    logits_TE = linear(read_1TD, p.weights[Role.ROUTER])[0]
    logits_TE += p.weights.get(Role.ROUTER_BIAS, np.float32(0))
    correction, scales = (p.weights.get(x) for x in (Role.ROUTER_CORRECTION, Role.EXPERT_SCALES))
    table = p.weights.get(Role.EXPERT_TABLE)
    told = None if table is None else table[0, p.token_ids].astype(np.int64)
    weights_TE = choose_experts(logits_TE, experts, correction, scales, told)
    y_1TD = np.zeros_like(x_1TD)
    for expert, weights_T in enumerate(weights_TE.T):
        mine = np.flatnonzero(weights_T)
        if mine.size:
            weights = weights_T[mine, None]
            read = x_1TD[:, mine] * (weights if experts.weigh_inputs else np.float32(1))
            made = _expert(experts, p, expert, read)
            y_1TD[:, mine] += made if experts.weigh_inputs else weights * made
    return y_1TD + _shared(experts, p, x_1TD) if experts.shared else y_1TD


def read_by_router(x_1TD: Floats, scale_1D: Floats, eps: float) -> Floats:
    """Return what a router with a norm of its own reads of the stream."""
    normed: Floats = rms_norm(x_1TD, scale_1D, eps) * np.float32(x_1TD.shape[-1] ** -0.5)
    return normed


def _expert(experts: Experts, p: LayerPass, expert: int, x_1TD: Floats) -> Floats:
    """Return what one expert makes of its tokens."""

    def product(y_1TX: Floats, role: Role, bias: Role) -> Floats:
        made = linear(y_1TX, p.experts[role][expert])
        return made + p.weights[bias][0, expert] if bias in p.weights else made

    up = product(x_1TD, Role.EXPERT_UP, Role.EXPERT_UP_BIAS)
    if experts.gated:
        gate = product(x_1TD, Role.EXPERT_GATE, Role.EXPERT_GATE_BIAS)
        hidden = _gated(experts, gate, up)
    else:
        hidden = relu_squared(up)
    return product(hidden, Role.EXPERT_DOWN, Role.EXPERT_DOWN_BIAS)


def _gated(experts: Experts, gate: Floats, up: Floats) -> Floats:
    if experts.limit is not None:
        limit = np.float32(experts.limit)
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return GATES[experts.activation](gate, up)


def _shared(experts: Experts, p: LayerPass, x_1TD: Floats) -> Floats:
    """Return what the MLP of all tokens makes of them."""
    up = linear(x_1TD, p.weights[Role.SHARED_UP])
    if experts.gated:
        gate = linear(x_1TD, p.weights[Role.SHARED_GATE])
        hidden = _gated(experts, gate, up)
    else:
        hidden = relu_squared(up)
    made_1TD = linear(hidden, p.weights[Role.SHARED_DOWN])
    if (gate_1D := p.weights.get(Role.SHARED_EXPERT_GATE)) is not None:
        made_1TD *= sigmoid(linear(x_1TD, gate_1D[:, None]))
    return made_1TD


COMPUTATION = Computation(Experts, _run)
