"""What is compared: one Llama, cut and joined in different ways, at sizes that a CPU can train.

All variants of a size have the same matrices in number and shape, so the same parameters but for
norm scales (a lane has its own), the same tokens, and the same order of the data under one seed.
"""

from dataclasses import dataclass
from typing import Any

FIRST = (  # of the first study
    *("dense", "now", "delay 1", "delay 2", "delay 4"),
    *("delay 1, early", "delay 2, early", "delay 4, early", "never"),
)
FAIR = ("dense", "delay 2", "delay 2, early", "naive 2")
CONTROLS = ("delay 2, unscaled", "delay 2, split head", "delay 2, own scales")


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
    variants: tuple[str, ...] = FIRST
    controls: tuple[str, ...] = ()  # at the best rate of "delay 2", under seeds 0 and 1
    base: str = "now"  # the variant that others are compared with
    head: str = "vocab_parallel"
    shared_norms: bool = False  # one norm scale for all lanes: as many as the dense model has
    rates_of: str | None = None  # the size that searched the rates; None: this one does

    @property
    def tokens(self) -> int:
        """Tokens of one run."""
        return self.steps * self.rows * self.context


_FAIR: dict[str, Any] = {
    "variants": FAIR,
    "base": "dense",
    "head": "replicate",
    "shared_norms": True,
}
_FEW: dict[str, Any] = {"context": 32, "rows": 2}  # for tests
_THREE: dict[str, Any] = {"variants": ("dense", "delay 2", "naive 2")}

SIZES = {
    size.name: size
    for size in (
        Size("tiny", 16, 32, 5, 2, (1e-3, 2e-3), context=32, rows=2),  # for tests
        Size("small", 64, 128, 8, 500, (4e-3,)),  # one rate: the time went to seeds
        # Small's measures with what small lacked; "now" would be "dense" to the last digits.
        Size("medium", 64, 128, 8, 500, (4e-3, 2e-3, 8e-3), **_FAIR, controls=CONTROLS),
        Size("medium-long", 64, 128, 8, 4000, (), **_FAIR | _THREE, rates_of="medium"),
        Size("medium-deep", 64, 128, 16, 500, (4e-3, 2e-3, 8e-3), **_FAIR | _THREE),
        Size("medium-tiny", 16, 32, 5, 4, (1e-3, 2e-3), **_FEW, **_FAIR, controls=CONTROLS),
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
    # rules.py has what these two do otherwise.
    "naive 2": {"num_lanes": LANES, "broadcast_delay": 2},
    "delay 2, unscaled": {"num_lanes": LANES, "broadcast_delay": 2},
    # What small had, one at a time, beside the replicated head and the shared norm scales.
    "delay 2, split head": {
        "num_lanes": LANES,
        "broadcast_delay": 2,
        "lm_head_type": "vocab_parallel",
    },
    "delay 2, own scales": {
        "num_lanes": LANES,
        "broadcast_delay": 2,
        "replicated_rmsn_scale": False,
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
        "lm_head_type": size.head,
        "replicated_rmsn_scale": size.shared_norms,
        **VARIANTS[variant],
    }
