"""What is compared: one Llama, cut and joined in different ways, at sizes that a CPU can train.

All variants of a size have the same matrices in number and shape, so the same parameters but for
norm scales (a lane has its own), the same tokens, and the same order of the data under one seed.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Size:
    """A model's measures and the length of its training."""

    name: str
    hidden: int
    inner: int
    layers: int
    steps: int
    learning_rates: tuple[float, ...]  # of the search, the likeliest first
    heads: int = 8  # also key and value heads: one a lane
    vocab: int = 2048
    context: int = 256  # tokens of a row
    rows: int = 8  # of a step

    @property
    def tokens(self) -> int:
        """Tokens of one run."""
        return self.steps * self.rows * self.context


SIZES = {
    size.name: size
    for size in (
        Size("tiny", 16, 32, 5, 2, (1e-3, 2e-3), context=32, rows=2),  # for tests
        Size("small", 64, 128, 8, 500, (4e-3,)),  # one rate: the time went to seeds
        Size("medium", 128, 256, 8, 1500, (3e-3, 6e-3, 1.5e-3)),
        Size("large", 512, 1536, 12, 20_000, (1e-3, 2e-3, 5e-4), context=1024, rows=32),
    )
}

LANES = 8

# Fields of config.json. "now" is ordinary tensor parallelism: every exchange is waited for.
VARIANTS: dict[str, dict[str, Any]] = {
    "dense": {"num_lanes": 1, "broadcast_delay": 0},
    "now": {"num_lanes": LANES, "broadcast_delay": 0},
    "delay 1": {"num_lanes": LANES, "broadcast_delay": 1},
    "delay 2": {"num_lanes": LANES, "broadcast_delay": 2},
    "delay 4": {"num_lanes": LANES, "broadcast_delay": 4},
    "delay 1, early": {"num_lanes": LANES, "broadcast_delay": 1, "use_early_comm": True},
    "delay 2, early": {"num_lanes": LANES, "broadcast_delay": 2, "use_early_comm": True},
    "delay 4, early": {"num_lanes": LANES, "broadcast_delay": 4, "use_early_comm": True},
    "never": {
        "num_lanes": LANES,
        "broadcast_delay": 2,
        "use_attention_comm": False,
        "use_mlp_comm": False,
    },
}


def config_fields(size: Size, variant: str) -> dict[str, Any]:
    """Return the fields of a Laneformer's config.json."""
    return {
        "hidden_size": size.hidden,
        "intermediate_size": size.inner,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads,
        "vocab_size": size.vocab,
        "max_position_embeddings": size.context,
        "lm_head_type": "vocab_parallel",
        **VARIANTS[variant],
    }
