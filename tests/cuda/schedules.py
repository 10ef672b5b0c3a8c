"""Tiny models and launches that are run under many schedules, each with a reason to be there."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from rig import Ask, MakeRig, Outcome, Rig, State, random_weights, tiny_config

from monolane.model import NEVER, NOW, Head, LayerConfig, ModelConfig, QkNorm, Reduce

CHOICES: tuple[dict[str, Any], ...] = (
    {},  # greedy
    {"temperature": 1.0, "seed": 7},
    {"temperature": 1.0, "seed": 8, "top_k": 9, "top_p": 0.9, "min_p": 0.01},
)
LATE = Reduce(1)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model on so many blocks, and the launch that is repeated.

    Slots are filled beforehand, so that the launch itself is a few passes long.
    """

    config: ModelConfig
    workers: int
    asks: tuple[Ask, ...]
    before: tuple[int, ...] = (3,)  # tokens in each slot
    wish: dict[str, Any] = field(default_factory=dict)

    def make(self, make_rig: MakeRig, **wish: Any) -> Rig:
        """A rig for the case."""
        weights = random_weights(self.config)
        wishes = {"workers": self.workers, "slots": len(self.before)} | self.wish | wish
        # Many launches of one kernel: at -Og they take a quarter longer.
        return make_rig(weights, optimise="-O1", **wishes)

    def fill(self, rig: Rig) -> State:
        """Fill the slots as they are before the launch; the rest of the cache holds NaNs."""
        rig.poison_cache()
        for slot, count in enumerate(self.before):
            tokens = [(5 * i + 3 * slot + 1) % self.config.vocab_size for i in range(count)]
            outcome = rig.launch(Ask(tokens=tokens, slot=slot), mood="brisk")
            assert outcome.healthy, (outcome.error, outcome.fault)
        return rig.keep()

    def launch(self, rig: Rig, state: State, seed: int, **options: Any) -> Outcome:
        """The launch under a schedule; seeds take turns with the ways to choose."""
        rig.bring_back(state)
        asks = [
            replace(ask, **CHOICES[(seed + i) % len(CHOICES)]) if not ask.all_logits else ask
            for i, ask in enumerate(self.asks)
        ]
        return rig.launch(*asks, seed=seed, **options)

    def expected(self, rig: Rig, state: State) -> list[Outcome]:
        """What each way to choose must give, whatever the schedule."""
        found = [self.launch(rig, state, way, mood="brisk") for way in range(len(CHOICES))]
        for outcome in found:
            assert outcome.healthy, (outcome.error, outcome.fault)
            assert outcome.events
        return found


def one(*tokens: int, budget: int = 3, slot: int = 0) -> Ask:
    return Ask(tokens=tokens, budget=budget, slot=slot, record_logits=True)


CASES = {
    # The shape that is measured first: eight lanes, outputs that meet a layer later.
    "eight lanes, two blocks": Case(
        config=tiny_config(
            num_lanes=8,
            num_heads=8,
            num_kv_heads=8,
            intermediate_size=64,
            vocab_size=64,
            layers=(LayerConfig(NEVER, NEVER), LayerConfig(LATE, LATE)),
        ),
        workers=16,
        asks=(one(1, budget=2),),
        wish={"warps": 1},
    ),
    # No other lane to wait for: blocks meet in streams, splits and candidates only.
    "one lane, three blocks": Case(
        config=tiny_config(num_lanes=1, num_kv_heads=1, layers=(LayerConfig(NOW, NOW),) * 3),
        workers=3,
        asks=(one(1),),
    ),
    # Blocks of 4 and 5 rows, of one, two or no units of attention, of different vocabularies.
    "uneven rows": Case(
        config=tiny_config(
            hidden_size=18,
            intermediate_size=22,
            vocab_size=23,
            num_heads=6,
            num_kv_heads=6,
            head=Head.MEAN,
            layers=(LayerConfig(NOW, NOW), LayerConfig(NOW, LATE)),
        ),
        workers=8,
        asks=(one(1, budget=2),),
    ),
    # Position 78 on: rows 78, 79, 0, 1, ... of a cache of 80.
    "window wraps": Case(
        config=tiny_config(max_positions=128, layers=(LayerConfig(NOW, NOW, 6),) * 2),
        workers=4,
        asks=(one(1, 2, budget=3),),
        before=(78,),
        wish={"widths": (2,)},
    ),
    # Six chunks of keys on three splits.
    "long context": Case(
        config=tiny_config(
            num_lanes=1, num_kv_heads=1, max_positions=128, layers=(LayerConfig(NOW, NOW),) * 2
        ),
        workers=3,
        asks=(one(1),),
        before=(90,),
    ),
    # One sequence draws while the other is in its prompt; work for both warps in every phase.
    "batch of two": Case(
        config=tiny_config(
            hidden_size=32, vocab_size=200, layers=(LayerConfig(NOW, NOW), LayerConfig(LATE, LATE))
        ),
        workers=4,
        asks=(one(1, budget=3), one(2, 3, 4, 5, slot=1, budget=2)),
        before=(3, 17),
        wish={"widths": (3,)},
    ),
    # Four rows of one sequence in a pass, as a verified draft has them.
    "verify four": Case(
        config=tiny_config(hidden_size=32, num_heads=4, layers=(LayerConfig(NOW, NOW),) * 2),
        workers=4,
        asks=(Ask(tokens=(1, 2, 3, 4, 5, 6, 7, 8), all_logits=True), one(9, slot=1)),
        before=(14, 3),
        wish={"widths": (5,)},
    ),
    # Rings of raw outputs that are used again: three slots, one layer's delay, seven layers.
    "late outputs": Case(
        config=tiny_config(layers=(LayerConfig(NEVER, NEVER), *[LayerConfig(LATE, LATE)] * 6)),
        workers=2,
        asks=(one(1, budget=2),),
    ),
    # Lanes that never hear of each other but at a pass's end, one of which may be a pass ahead.
    "lanes apart": Case(
        config=tiny_config(layers=(LayerConfig(NEVER, NEVER),)),
        workers=2,
        asks=(one(1, budget=25), one(2, slot=1, budget=25)),
        before=(3, 3),
        wish={"widths": (2,)},
    ),
    # Two rows of GATE and UP for four blocks: two hear of a stream that nobody hears of from them.
    "idle blocks": Case(
        config=tiny_config(
            num_lanes=1, num_kv_heads=1, intermediate_size=2, layers=(LayerConfig(NOW, NOW),) * 3
        ),
        workers=4,
        asks=(one(1),),
    ),
    # Modules read the streams as they are; what they add is normed, by squares of all its rows.
    "norms behind modules": Case(
        config=tiny_config(
            hidden_size=32,
            norm_before=False,
            norm_after=True,
            layers=(LayerConfig(NOW, NOW), LayerConfig(LATE, LATE)),
        ),
        workers=4,
        asks=(one(1, budget=2), one(2, 3, slot=1, budget=1)),
        before=(3, 5),
        wish={"widths": (3,)},
    ),
    # The squares of all heads go to all blocks, those of blocks without a query or key among them.
    "a norm of all heads": Case(
        config=tiny_config(
            num_lanes=1, num_kv_heads=1, qk_norm=QkNorm.ALL, layers=(LayerConfig(NOW, NOW),) * 2
        ),
        workers=4,
        asks=(one(1, budget=2),),
    ),
    # Activations in memory, which the blocks of a lane prepare for each other.
    "wide pass": Case(
        config=tiny_config(
            hidden_size=32, num_heads=4, layers=(LayerConfig(NOW, NOW), LayerConfig(LATE, LATE))
        ),
        workers=6,
        asks=(one(*range(1, 12), budget=2), one(9, slot=1)),
        before=(3, 3),
        wish={"widths": (7,), "wide": True},
    ),
    # Scales that come while the product runs, of a product whose sums another warp still reads.
    "float8": Case(
        config=tiny_config(layers=(LayerConfig(NOW, NOW, 6), LayerConfig(LATE, LATE))),
        workers=4,
        asks=(one(1),),
        wish={"dtype": "float8"},
    ),
    # One row has its mask, one is given back in its first pass; a third draws on.
    "guides": Case(
        config=tiny_config(vocab_size=70),
        workers=4,
        asks=(
            one(1, budget=3),
            Ask(
                tokens=(2,),
                slot=1,
                guided=True,
                record_logits=True,
                mask=np.array([0x80001001, 0x421, 0x20], np.uint32),
            ),
            Ask(tokens=(3, 4), slot=2, guided=True),
        ),
        before=(3, 5, 2),
        wish={"widths": (5,)},
    ),
    "no copy engine": Case(
        config=tiny_config(layers=(LayerConfig(NOW, NOW, 6), LayerConfig(NOW, NEVER))),
        workers=4,
        asks=(one(1),),
        wish={"sm": 80},
    ),
}

# Between two layers that exchange, two that never do: a lane hears nothing of the others while it
# goes through them, and publishes into a raw slot that another may not have read.
GAPS = Case(
    config=tiny_config(
        layers=tuple(
            LayerConfig(LATE if late else NEVER, NEVER)
            for late in (False, True, False, False, True)
        )
    ),
    workers=2,
    asks=(one(1, budget=20),),
)
