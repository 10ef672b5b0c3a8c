"""What a layer that predicts further ahead begins with, as its definition.

Shape legend: T tokens of the pass, D hidden.
"""

import numpy as np

from monolane.ops._names import Role
from monolane.ops.ahead.spec import Ahead
from monolane.reference import Computation, Floats, LayerPass, linear


def _run(_: Ahead, p: LayerPass, x_1TD: Floats) -> Floats:
    assert p.states is not None
    token_1TD = p.norm(x_1TD, p.weights[Role.AHEAD_TOKEN_NORM])
    state_1TD = p.norm(p.states[None], p.weights[Role.AHEAD_STATE_NORM])
    return linear(np.concatenate([token_1TD, state_1TD], axis=-1), p.weights[Role.AHEAD_IN])


COMPUTATION = Computation(Ahead, _run)
