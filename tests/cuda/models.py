"""Small models with random weights, made in memory."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from monolane.model import Role, Weights, lane_shape, layer_roles, parse_config

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:  # `bench` is no installed package
    sys.path.append(ROOT)

from bench.gpu.tiny import TINY  # noqa: E402

__all__ = ["TINY", "random_weights"]


def random_weights(**changes: Any) -> Weights:
    """Return a model of TINY's shape, float32, the same at every call."""
    config = parse_config({**TINY, **changes}, "tiny")
    rng = np.random.default_rng(0)

    def draw(role: Role) -> np.ndarray[Any, Any]:
        values: np.ndarray[Any, Any] = rng.normal(scale=0.3, size=lane_shape(config, role))
        return values.astype(np.float32)

    outer = {role: draw(role) for role in (Role.EMBEDDING, Role.FINAL_NORM, Role.HEAD)}
    layers = tuple({role: draw(role) for role in layer_roles(config)} for _ in config.layers)
    return Weights(config, outer, layers)
