"""Models that differ from a real one in what DTP is about: lanes, and when they exchange."""

import re
from dataclasses import replace

from monolane.errors import ConfigError, RequestError
from monolane.model import NEVER, ModelConfig, Reduce


def with_reduce(config: ModelConfig, rule: str) -> ModelConfig:
    """Return the model with another reduce rule: ``now``, ``never`` or ``after:D``.

    Under ``after:D`` the first D layers follow NEVER, as Laneformer's do. Time alone makes sense of
    it: a model has to be trained with the rule that it runs by.
    """
    match = re.fullmatch(r"now|never|after:([1-9]\d?)", rule)
    if match is None:
        raise RequestError(f"reduce: expected now, never or after:D as in after:2, got {rule!r}")
    if config.num_lanes == 1:
        raise ConfigError(
            f"reduce: expected a model of several lanes, got one lane; cut it with lanes, or leave "
            f"{rule!r} out"
        )
    delay = 0 if rule == "now" else int(match[1]) if match[1] else None
    layers = []
    for i, layer in enumerate(config.layers):
        own = NEVER if delay is None or i < delay else Reduce(delay)
        layers.append(replace(layer, attention_reduce=own, mlp_reduce=own))
    return replace(config, layers=tuple(layers))


def with_lanes(config: ModelConfig, lanes: int) -> ModelConfig:
    """Return the model cut into another number of lanes; ConfigError if its heads do not divide."""
    return replace(config, num_lanes=lanes)
