"""Random weights of any config, each role's of one spread."""

from collections.abc import Callable
from typing import Any

import numpy as np

from monolane.model import (
    EXPERT_ROLES,
    Matrix,
    ModelConfig,
    Role,
    Weights,
    lane_shape,
    layer_roles,
    outer_roles,
)

Make = Callable[[Role, tuple[int, ...]], Matrix]


def weights_of(config: ModelConfig, dtype: Any = np.float32, make: Make | None = None) -> Weights:
    """Weights of ``dtype``; ``make`` makes the experts' matrices, in another form than floats."""
    rng = np.random.default_rng(0)

    def draw(role: Role, layer: int | None = None) -> Any:
        scale = 0.2
        if any(word in role for word in ("norm", "router", "delta")):
            scale = 0.5
        return rng.normal(scale=scale, size=lane_shape(config, role, layer=layer)).astype(dtype)

    outer = {role: draw(role) for role in outer_roles(config)}
    roles = [layer_roles(config, i) for i in range(config.num_layers)]
    layers = tuple(
        {x: draw(x, i) for x in each if x not in EXPERT_ROLES} for i, each in enumerate(roles)
    )
    count = 0 if config.experts is None else config.experts.count
    experts = {
        (role, i): tuple(
            make(role, lane_shape(config, role)) if make else draw(role) for _ in range(count)
        )
        for i, each in enumerate(roles)
        for role in each
        if role in EXPERT_ROLES
    }
    return Weights(config, outer, layers, experts=experts)
