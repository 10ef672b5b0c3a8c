"""A dense MLP, as its definition.

Shape legend: L lanes, T tokens, D hidden.
"""

from monolane.ops._names import Role
from monolane.ops.mlp.spec import Mlp
from monolane.reference import GATES, Computation, Floats, LayerPass, linear


def _run(mlp: Mlp, p: LayerPass, x_LTD: Floats) -> Floats:
    gate, up = (linear(x_LTD, p.weights[role]) for role in (Role.GATE, Role.UP))
    return linear(GATES[mlp.activation](gate, up), p.weights[Role.DOWN])


COMPUTATION = Computation(Mlp, _run)
