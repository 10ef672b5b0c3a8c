"""An MLP whose gate lets few numbers through, as its definition."""

from statistics import NormalDist

import numpy as np

from monolane.ops._names import Role
from monolane.ops.sparse_mlp.spec import SparseMlp
from monolane.reference import GATES, Computation, Floats, LayerPass, linear


def _run(o: SparseMlp, p: LayerPass, x_1TD: Floats) -> Floats:
    gate, up = (linear(x_1TD, p.weights[role]) for role in (Role.GATE, Role.UP))
    far = np.float32(NormalDist().inv_cdf(o.sparsity))
    mean, spread = (f(gate, axis=-1, keepdims=True) for f in (np.mean, np.std))
    passed = np.maximum(gate - (mean + spread * far), np.float32(0))
    return linear(GATES[o.activation](passed, up), p.weights[Role.DOWN])


COMPUTATION = Computation(SparseMlp, _run)
