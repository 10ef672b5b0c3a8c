"""An MLP whose gate lets few numbers through, as its definition."""

import numpy as np

from monolane.ops._names import Role
from monolane.ops.sparse_mlp.spec import SparseMlp
from monolane.reference import GATES, Computation, Floats, LayerPass


def hidden_of(o: SparseMlp, gate: Floats, up: Floats) -> Floats:
    """Return what the last matrix reads, of the products with gate and up: [.., T, F]."""
    mean, spread = (f(gate, axis=-1, keepdims=True) for f in (np.mean, np.std))
    passed = np.maximum(gate - (mean + spread * np.float32(o.deviations)), np.float32(0))
    return GATES[o.activation](passed, up)


def _run(o: SparseMlp, p: LayerPass, x_1TD: Floats) -> Floats:
    gate, up = (p.product(x_1TD, role) for role in (Role.GATE, Role.UP))
    return p.product(hidden_of(o, gate, up), Role.DOWN)


COMPUTATION = Computation(SparseMlp, _run)
