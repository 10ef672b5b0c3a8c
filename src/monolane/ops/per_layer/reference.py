"""Per-layer embeddings as their definition.

Shape legend: T tokens of the pass, D hidden, P numbers of a token for one layer, N layers.
"""

import math

import numpy as np

from monolane.ops._names import Role
from monolane.ops.per_layer.spec import PerLayer
from monolane.reference import GATES, Computation, Floats, LayerPass, linear


def _run(o: PerLayer, p: LayerPass, x_1TD: Floats) -> Floats:
    own = slice(p.layer * o.inner, (p.layer + 1) * o.inner)
    gate = linear(x_1TD, p.weights[Role.PER_LAYER_GATE])
    gated = GATES[o.activation](gate, _inputs(o, p, own))
    return linear(gated, p.weights[Role.PER_LAYER_OUT])


def _inputs(o: PerLayer, p: LayerPass, own: slice) -> Floats:
    """Return what the pass's tokens have for a layer: [1, T, P]."""
    hidden = p.config.hidden_size
    embedded_TD = p.outer[Role.EMBEDDING][p.token_ids] * np.float32(p.config.embedding_scale)
    projection = p.outer[Role.PER_LAYER_PROJECTION][:, own]
    projected = linear(embedded_TD[None], projection) * np.float32(hidden**-0.5)
    projected = p.norm(projected, p.outer[Role.PER_LAYER_NORM])
    rows_T = np.where(p.token_ids < o.rows, p.token_ids, 0)  # Gemma 3n: others read the first
    found_TP = p.outer[Role.PER_LAYER_EMBEDDING][rows_T, own] * np.float32(o.inner**0.5)
    both: Floats = (projected + found_TP[None]) * np.float32(math.sqrt(0.5))
    return both


COMPUTATION = Computation(PerLayer, _run)
