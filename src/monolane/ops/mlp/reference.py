"""A dense MLP, as its definition.

Shape legend: L lanes, T tokens, D hidden.
"""

import numpy as np

from monolane.ops._names import Role
from monolane.ops.mlp.spec import Mlp
from monolane.reference import GATES, Computation, Floats, LayerPass, relu_squared


def hidden_of(mlp: Mlp, products: list[Floats]) -> Floats:
    """Return what the last matrix reads, of the products with gate and up, or with up alone."""
    if not mlp.gated:
        return relu_squared(products[0])
    gate, up = products
    scaled = gate if mlp.gate_scale == 1 else gate * np.float32(mlp.gate_scale)
    return GATES[mlp.activation](scaled, up)


def _run(mlp: Mlp, p: LayerPass, x_LTD: Floats) -> Floats:
    roles = (Role.GATE, Role.UP) if mlp.gated else (Role.UP,)
    hidden = hidden_of(mlp, [p.product(x_LTD, role) for role in roles])
    return p.product(hidden, Role.DOWN)


COMPUTATION = Computation(Mlp, _run)
