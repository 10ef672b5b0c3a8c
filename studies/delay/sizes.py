"""What is compared, at which sizes: one Llama, cut and joined in different ways.

The sizes have the 2B model's depth, lanes and delay. All variants of a size have the same matrices
in number and shape, but for the yardsticks, which have fewer layers. Needs no torch.
"""

from dataclasses import dataclass
from typing import Any

LANES = 8
RATES = (1e-3, 2e-3, 4e-3, 8e-3)  # peak learning rates of the search
SEARCHED = ("dense", "naive 2", "delay 2")  # what a block trains
SEARCH_SEED = 0  # never that of a block
SEEDS = (1, 2, 3, 4, 5, 6)  # of the blocks; the rule may end before the last
MILLION = 1_000_000


@dataclass(frozen=True)
class Size:
    """A model's measures, the length of its training, and what an H100 was estimated to do."""

    name: str
    hidden: int
    inner: int
    tokens: int  # of a run, at most: a slow card shortens the runs of all blocks alike
    grain: int  # and this is what a run is shortened by, in tokens
    search_tokens: int
    rows: int  # of a step
    passes: int  # that a step of eight lanes takes
    exam_rows: int
    # Tokens/s of one lane and of eight, estimated from memory traffic; no figure was measured.
    estimate: tuple[float, float]
    layers: int = 15
    heads: int = 8  # also key and value heads: one a lane
    vocab: int = 8192
    context: int = 1024  # tokens of a row
    rate_factor: float = 1.0  # of the searched size's best rates
    dtype: str = "bfloat16"  # of products
    passes_of_one: int = 1  # that a step of one lane takes
    attention: str = "sdpa"  # or "narrow": that of processor.py
    rates: tuple[float, ...] = RATES  # of the search

    @property
    def step_tokens(self) -> int:
        """Tokens of one step."""
        return self.rows * self.context

    def passes_of(self, lanes: int) -> int:
        """Passes that a step takes in so many lanes."""
        return self.passes if lanes > 1 else self.passes_of_one

    def steps(self, tokens: int) -> int:
        """Whole steps that so many tokens make."""
        return max(1, tokens // self.step_tokens)


SIZES = {
    size.name: size
    for size in (
        # 12.8 M parameters in the layers, 17 M in all: 12 tokens for each of the first.
        Size("17M", 256, 768, 150 * MILLION, 10 * MILLION, 20 * MILLION, 64, 4, 1024, (1.5e6, 5e5)),
        # 26.5 M in the layers, 33 M in all. Nothing is searched for it: the rate goes with 1/width.
        Size("33M", 384, 1024, 120 * MILLION, 10 * MILLION, 0, 64, 8, 1024, (1.2e6, 3e5),
             rate_factor=256 / 384),
        # For processors: 0.8 M in the layers, 1.8 M in all; 10 tokens for each of the first. Few
        # processors multiply in bfloat16. So narrow a model learns best at higher rates.
        Size("1M", 64, 192, 8 * MILLION, MILLION, MILLION, 16, 8, 512, (4e3, 2e3), context=256,
             dtype="float32", passes_of_one=4, attention="narrow",
             rates=(4e-3, 8e-3, 16e-3, 32e-3)),
        # For the rehearsal on a CPU, of both.
        Size("tiny", 32, 64, 3072, 512, 1024, 4, 2, 8, (2e4, 1e4), layers=5, vocab=512,
             context=32),
        Size("tiny-33M", 48, 64, 1024, 512, 0, 4, 2, 8, (2e4, 1e4), layers=5, vocab=512,
             context=32, rate_factor=32 / 48),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """How one model is cut into lanes, and how these hear each other."""

    name: str
    delay: int = 0
    lanes: int = LANES  # that it is trained in; 1 where all streams are equal
    rule: str = ""  # of exchange, where no config.json can say it: see model.py
    early: bool = False  # layers below the delay wait for their exchanges
    fewer_layers: int = 0
    share: float = 1.0  # of the tokens
    rates_of: str = "delay 2"  # the searched variant whose best rate it takes

    @property
    def unheard(self) -> int:
        """The last layers, whose outputs nobody hears: they cost time and learn nothing."""
        return self.delay if self.rule == "naive" else 0

    def config_fields(self, size: Size) -> dict[str, Any]:
        """Return the fields of a Laneformer's config.json."""
        return {
            "hidden_size": size.hidden,
            "intermediate_size": size.inner,
            "num_hidden_layers": size.layers - self.fewer_layers,
            "num_attention_heads": size.heads,
            "num_key_value_heads": size.heads,
            "vocab_size": size.vocab,
            "max_position_embeddings": size.context,
            "num_lanes": self.lanes,
            "broadcast_delay": self.delay,
            "use_early_comm": self.early,
            "lm_head_type": "replicate",
            "replicated_rmsn_scale": True,
        }


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("dense", lanes=1, rates_of="dense"),
        # All outputs late, a lane's own too: every stream is the same, so one lane is all of them.
        Variant("naive 2", 2, lanes=1, rule="naive", rates_of="naive 2"),
        Variant("delay 2", 2),
        # Yardsticks: they turn nats into layers and into tokens lost.
        Variant("dense, 8 layers", lanes=1, fewer_layers=7, rates_of="dense"),
        Variant("dense, 14 layers", lanes=1, fewer_layers=1, rates_of="dense"),
        Variant("dense, 13 layers", lanes=1, fewer_layers=2, rates_of="dense"),
        Variant("dense, 80 % of the tokens", lanes=1, share=0.8, rates_of="dense"),
        Variant("delay 1", 1),
        Variant("delay 4", 4),
        Variant("delay 2, early", 2, early=True),
        Variant("delay 2, unscaled", 2, rule="unscaled"),
        # Not trained: eight equal streams, for the proof that one lane is the same.
        Variant("now"),
        Variant("naive 2, eight lanes", 2, rule="naive"),
    )
}
