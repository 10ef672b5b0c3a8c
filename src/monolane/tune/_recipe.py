"""The recipes of what is trained here: every number that decides weights, frozen.

A run keeps its recipe beside its checkpoints, so that a resumed run cannot drift from the one that
it continues.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from monolane._schedule import Wsd
from monolane._toml import Share, config, load_table, read_table, shipped_files
from monolane.errors import ConfigError

_PACKAGE = "monolane.tune"

# Of a Laneformer's layers; the parameters are stacks [L, out, in], one matrix per lane.
Matrix = Literal["wq", "wk", "wv", "wo", "w1", "w2", "w3"]
ADAPTED: tuple[Matrix, ...] = ("wq", "wk", "wv", "wo", "w1", "w2", "w3")
Context = Annotated[int, Field(ge=2)]  # tokens
# Of an annealing.
Order = Literal["together", "from_top", "from_bottom", "at_once"]
Objective = Literal["distil", "finetune"]
Precision = Literal["auto", "float32", "bfloat16"]  # of the factors of products


@config
class LoraRecipe:
    """Low-rank updates instead of all weights: rank per lane, scale alpha / rank, and where."""

    rank: PositiveInt = 16
    alpha: PositiveFloat = 32.0
    matrices: Annotated[tuple[Matrix, ...], Field(min_length=1)] = ADAPTED


@config
class SftRecipe:
    """One fine-tuning on chats; lengths in tokens, batches in rows of ``context`` tokens."""

    # Data
    context: Context | None = None  # None: the model's own
    packing: bool = True  # whole chats share a row; none sees another
    # Chats beyond the context: an error, left out, or cut at the end.
    too_long: Literal["refuse", "drop", "cut"] = "refuse"
    seed: int = 0  # of the order of the rows, and of LoRA's initial values
    held_out: Share = 0.0  # share of the chats, chosen by the hash of what they say: scored only
    evaluate_every: NonNegativeInt = 0  # steps between scores of those; 0: at the end only

    # Length
    epochs: PositiveFloat = 1.0  # where steps is not given
    steps: PositiveInt | None = None
    rows_per_step: PositiveInt = 8
    rows_at_once: PositiveInt = 1  # of a step that go through the model together

    # Optimiser: AdamW, with the rate warmed up, held and decayed to zero (WSD)
    peak_lr: PositiveFloat = 2e-5
    warmup_share: Share = 0.05
    decay_share: Share = 0.2
    weight_decay: NonNegativeFloat = 0.0
    beta1: Share = 0.9
    beta2: Share = 0.95
    clip_norm: PositiveFloat = 1.0
    precision: Literal["float32", "bfloat16"] = "float32"  # of the arithmetic; weights are float32

    lora: LoraRecipe | None = None

    def __post_init__(self) -> None:
        if self.rows_per_step % self.rows_at_once:
            raise ConfigError(
                "rows_per_step: expected a multiple of rows_at_once, got "
                f"{self.rows_per_step} and {self.rows_at_once}; mend one of them"
            )
        Wsd.of(1000, self.warmup_share, self.decay_share)  # its error names the two shares
        if self.evaluate_every and not self.held_out:
            raise ConfigError(
                f"evaluate_every: expected chats to score, got {self.evaluate_every} steps and "
                "held_out = 0; hold a share out, or leave it at 0"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, for a file beside the run."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "recipe") -> "SftRecipe":
        """Build a recipe from plain values; ConfigError names a field that is unknown or wrong."""
        return read_table(cls, values, source)


@config
class AnnealRecipe:
    """How long, how fast, and in which order the delay comes in."""

    order: Order = "together"
    objective: Objective = "distil"
    anneal_share: Annotated[float, Field(gt=0, le=1)] = 0.5  # of the steps; then the full delay
    steps: PositiveInt = 500
    rows_per_step: PositiveInt = 8
    context: Context = 256
    peak_lr: PositiveFloat = 1e-3
    warmup_share: Share = 0.05
    decay_share: Share = 0.3
    weight_decay: NonNegativeFloat = 0.0
    clip_norm: PositiveFloat = 1.0
    seed: int = 0
    examined: PositiveInt = 64  # held-out windows at most, the same ones every time
    best: NonNegativeInt = 64  # of the teacher's next tokens, kept on disk; 0: all, computed anew
    precision: Precision = "auto"  # of the factors of products; weights are float32
    lora: LoraRecipe | None = None  # low-rank updates of the lanes' matrices, and nothing else

    def __post_init__(self) -> None:
        Wsd.of(self.steps, self.warmup_share, self.decay_share)

    def progress(self, step: int) -> float:
        """Return how much of the annealing is done at step ``step``, counted from 0."""
        return min(1.0, (step + 1) / (self.anneal_share * self.steps))


@config
class DrafterRecipe:
    """How a drafter is trained, of whichever kind.

    texts, context   material: texts, and tokens of each at most
    vocabulary       R: tokens that can be drafted, those that the model says most
    inner            width of what is between, a multiple of 32; None: by the model's hidden size
    depth            tokens of a draft that are learnt
    places           places of a step
    """

    texts: PositiveInt = 400
    context: PositiveInt = 256
    vocabulary: PositiveInt = 4096
    inner: PositiveInt | None = None
    depth: PositiveInt = 4
    steps: PositiveInt = 2000
    places: PositiveInt = 256
    peak_lr: PositiveFloat = 1e-3
    seed: NonNegativeInt = 0

    def __post_init__(self) -> None:
        if self.inner is not None and self.inner % 32:
            raise ConfigError(f"inner: expected a multiple of 32, got {self.inner}")


def read_recipe(name: str | Path) -> SftRecipe:
    """Read a recipe: a TOML file, or the name of a shipped one, such as laneformer_2b_sft."""
    table, origin = load_table(name, _PACKAGE)
    return SftRecipe.from_dict(table, origin)


def shipped_recipes() -> tuple[str, ...]:
    """Return the names of the recipes that come with the package."""
    return shipped_files(_PACKAGE)
