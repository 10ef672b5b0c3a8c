"""The recipe of a supervised fine-tuning: every number that decides its weights, frozen.

A run keeps its recipe beside its checkpoints, so that a resumed run cannot drift from the one that
it continues.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from monolane._toml import load_table, read_table, shipped_tables
from monolane.errors import ConfigError
from monolane.tune._schedule import Wsd

TooLong = Literal["refuse", "drop", "cut"]
Precision = Literal["float32", "bfloat16"]

_PACKAGE = "monolane.tune"

# Of a Laneformer's layers; the parameters are stacks [L, out, in], one matrix per lane.
ADAPTED = ("wq", "wk", "wv", "wo", "w1", "w2", "w3")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraRecipe:
    """Low-rank updates instead of all weights: rank per lane, scale alpha / rank, and where."""

    rank: int = 16
    alpha: float = 32.0
    matrices: tuple[str, ...] = ADAPTED

    def __post_init__(self) -> None:
        if self.rank < 1 or self.alpha <= 0:
            raise ConfigError(
                f"lora: expected rank of at least 1 and alpha above 0, got {self.rank} and "
                f"{self.alpha}"
            )
        unknown = [name for name in self.matrices if name not in ADAPTED]
        if unknown or not self.matrices:
            raise ConfigError(
                f"lora.matrices: expected some of {', '.join(ADAPTED)}, got {list(self.matrices)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SftRecipe:
    """One fine-tuning on chats; lengths in tokens, batches in rows of ``context`` tokens."""

    # Data
    context: int | None = None  # None: the model's own
    packing: bool = True  # whole chats share a row; none sees another
    too_long: TooLong = "refuse"  # chats beyond the context: an error, left out, or cut at the end
    seed: int = 0  # of the order of the rows, and of LoRA's initial values

    # Length
    epochs: float = 1.0  # where steps is not given
    steps: int | None = None
    rows_per_step: int = 8
    rows_at_once: int = 1  # of a step that go through the model together

    # Optimiser: AdamW, with the rate warmed up, held and decayed to zero (WSD)
    peak_lr: float = 2e-5
    warmup_share: float = 0.05
    decay_share: float = 0.2
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    clip_norm: float = 1.0
    precision: Precision = "float32"  # of the arithmetic; the weights being trained are float32

    lora: LoraRecipe | None = None

    def __post_init__(self) -> None:
        self._check_data()
        self._check_run()
        Wsd.of(1000, self.warmup_share, self.decay_share)  # its error names the two shares

    def _check_data(self) -> None:
        if self.context is not None and self.context < 2:
            raise ConfigError(f"context: expected at least 2 tokens, got {self.context}")
        if self.too_long not in ("refuse", "drop", "cut"):
            raise ConfigError(f"too_long: expected refuse, drop or cut, got {self.too_long!r}")
        if (
            self.rows_per_step < 1
            or self.rows_at_once < 1
            or self.rows_per_step % self.rows_at_once
        ):
            raise ConfigError(
                "rows_per_step: expected a multiple of rows_at_once, both at least 1, got "
                f"{self.rows_per_step} and {self.rows_at_once}"
            )

    def _check_run(self) -> None:
        if self.epochs <= 0 or (self.steps is not None and self.steps < 1):
            raise ConfigError(
                f"epochs, steps: expected more than 0, got {self.epochs} and {self.steps}"
            )
        if self.peak_lr <= 0 or self.clip_norm <= 0 or self.weight_decay < 0:
            raise ConfigError(
                "expected peak_lr > 0, clip_norm > 0 and weight_decay >= 0, got "
                f"{self.peak_lr}, {self.clip_norm} and {self.weight_decay}"
            )
        if self.precision not in ("float32", "bfloat16"):
            raise ConfigError(f"precision: expected float32 or bfloat16, got {self.precision!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, for a file beside the run."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "recipe") -> "SftRecipe":
        """Build a recipe from plain values; ConfigError names a field that is unknown or wrong."""
        return read_table(cls, values, source)


def read_recipe(name: str | Path) -> SftRecipe:
    """Read a recipe: a TOML file, or the name of a shipped one, such as laneformer_2b_sft."""
    table, origin = load_table(name, _PACKAGE)
    return SftRecipe.from_dict(table, origin)


def shipped_recipes() -> tuple[str, ...]:
    """Return the names of the recipes that come with the package."""
    return shipped_tables(_PACKAGE)
