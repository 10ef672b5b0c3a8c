"""A dense checkpoint becomes a Laneformer: exact at delay 0, a starting point above it.

With delay 0 every lane hears every other at once, all residual streams are equal, and the sums over
lanes are the dense model's sums in another order: the same model, up to rounding. A delay above 0
changes what is computed, and the model must then be trained back (``distil``).
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from monolane.errors import ConfigError
from monolane.model import Checkpoint, ModelConfig, Role, Weights, read_config, render_config
from monolane.tune._lanes import HeadName, check_biases, lane_config, lane_tensors
from monolane.tune._staging import publish


@dataclass(frozen=True, slots=True)
class Retrofit:
    """What a conversion made: the Laneformer's config, and what of the source it repeats."""

    config: ModelConfig
    kv_head_copies: int  # 1: as many KV heads as before
    added_inner: int  # inner units of zeros, so that all lanes have as many

    @property
    def exact(self) -> bool:
        """Whether the Laneformer computes what the dense model computes, but for rounding."""
        return all(
            rule.delay == 0
            for layer in self.config.layers
            for rule in (layer.attention_reduce, layer.mlp_reduce)
        )


def retrofit_config(
    source: Path, *, lanes: int, delay: int, early: bool, head: HeadName
) -> ModelConfig:
    """Return the Laneformer of a dense model's folder or file; ConfigError where there is none.

    Its weights are not read: what cannot be is refused before gigabytes are dequantised.
    """
    try:
        config = lane_config(read_config(source), lanes=lanes, delay=delay, early=early, head=head)
        render_config(config)  # ConfigError for what a Laneformer's config.json has no word for
    except ConfigError as error:
        raise ConfigError(f"{source}, in {lanes} lanes: {error}") from None
    return config


def retrofit_folder(
    source: Path,
    destination: Path,
    *,
    lanes: int = 8,
    delay: int = 0,
    early: bool = False,
    head: HeadName = "auto",
    overwrite: bool = False,
) -> Retrofit:
    """Write the dense model of ``source`` as a Laneformer to ``destination``; needs no torch.

    ``delay`` is in layers; ``early`` lets the layers before it exchange at once. ``head`` is
    vocab_parallel (each lane has a slice of the vocabulary), replicate (one head on the lanes'
    mean) or auto: the first, where the vocabulary divides. ConfigError and CheckpointError say
    what of the source a Laneformer cannot compute.
    """
    dense = read_config(source)
    config = retrofit_config(source, lanes=lanes, delay=delay, early=early, head=head)
    weights = Weights.load(dense, Checkpoint.open(source))
    check_biases(weights, str(source))
    # The weights know their dtype better than the source's own field does.
    config = replace(config, dtype=cast("Any", weights.outer[Role.EMBEDDING].dtype.name))
    added = config.intermediate_size - dense.intermediate_size
    made = Retrofit(config, config.num_kv_heads // dense.num_kv_heads, added)
    longest = max(layer.mlp_reduce.delay or 0 for layer in config.layers)
    publish(
        source,
        destination,
        config,
        lane_tensors(weights, config),
        overwrite,
        card="retrofit_card",
        made=made,
        delay=longest,
    )
    return made
