"""The recipe of the demo model: every number that decides its weights, in one frozen value.

Lengths are shares of the run here; :meth:`DemoRecipe.run_config` lays them out over its steps. A
run's folder keeps its recipe, so a resumed run cannot drift from the run that it continues.
"""

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from monolane.errors import CheckpointError, ConfigError
from monolane.train._build import config_fields
from monolane.train._config import (
    CheckpointPolicy,
    Compute,
    Data,
    Log,
    Model,
    Optimizer,
    RunConfig,
    Schedule,
)

_NAME = "recipe.json"
START = "start"  # in a run's folder, the model that it begins with

Precision = Literal["auto", "float32", "bfloat16"]
OptimiserName = Literal["adamw", "muon"]


@dataclass(frozen=True)
class DemoRecipe:
    """Shape, data, optimiser and schedule of one training run; validated on construction."""

    seed: int = 0
    begins_with: str = ""  # SHA-256 of the first weights' file; empty: random, from the seed

    # Shape: 4.9 M parameters, so that BF16 weights stay under 10 MB.
    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 6
    num_attention_heads: int = 16
    num_key_value_heads: int = 8
    num_lanes: int = 8
    broadcast_delay: int = 2
    sliding_window: int = 256
    windowed_layers: int = 4  # the first n layers; the rest attend to the whole context
    vocab_size: int = 2048
    context: int = 1024

    # Data
    held_out_share: float = 0.025  # of the files, chosen by the hash of their content

    # Optimiser
    optimiser: OptimiserName = "muon"
    tokens_per_step: int = 4096
    tokens_per_piece: int = 1024  # of a step that go through the model at once
    peak_lr: float = 3e-3
    weight_decay: float = 0.1  # on matrices only
    beta1: float = 0.9
    beta2: float = 0.95
    muon_momentum: float = 0.95
    clip_norm: float = 1.0
    precision: Precision = "bfloat16"  # of matrix products; auto: the faster on this machine

    # Schedule, as shares of the steps
    warmup_share: float = 0.02
    decay_share: float = 0.3
    long_share: float = 0.25  # the last steps, at the full context; before, rows are cut
    short_context: int = 256

    def __post_init__(self) -> None:
        self._check_shape()
        self._check_run()

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "DemoRecipe":
        """Rebuild a recipe from :func:`dataclasses.asdict`, refusing unknown names."""
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown:
            raise ConfigError(
                f"recipe: unknown fields {unknown}; the checkpoint comes from another version "
                "of monolane, so start a new run"
            )
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, for a checkpoint or a log."""
        return asdict(self)

    def save(self, folder: Path) -> None:
        """Keep the recipe in a run's folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _NAME).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "DemoRecipe":
        """Read back what :meth:`save` kept; CheckpointError where there is none."""
        path = folder / _NAME
        if not path.is_file():
            raise CheckpointError(
                f"{folder}: expected the run of a demo model, found none; start without --resume"
            )
        return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))

    def run_config(
        self, corpus: Path, steps: int, *, precision: str, compiled: bool = False, every: int = 100
    ) -> RunConfig:
        """Return the run of ``steps`` steps on a prepared corpus, kept ``every`` so many steps."""
        short = steps - int(self.long_share * steps)
        return RunConfig(
            model=replace(self.model(), init_from=str(corpus.parent / START))
            if self.begins_with
            else self.model(),
            data=Data(
                sequence_length=self.context,
                rows_per_step=self.tokens_per_step // self.context,
                corpus=str(corpus),
            ),
            optimizer=Optimizer(
                name=self.optimiser,
                peak_lr=self.peak_lr,
                beta1=self.beta1,
                beta2=self.beta2,
                weight_decay=self.weight_decay,
                muon_momentum=self.muon_momentum,
                clip_norm=self.clip_norm,
            ),
            schedule=Schedule(
                steps=steps,
                warmup=int(self.warmup_share * steps),
                decay=int(self.decay_share * steps),
                short_until=short,
                short_length=self.short_context,
            ),
            compute=Compute(
                precision="bfloat16" if precision == "bfloat16" else "float32",
                rows_per_pass=max(1, self.tokens_per_piece // self.context),
                compile=compiled,
                device="cpu",
            ),
            checkpoint=CheckpointPolicy(every=every, keep=1),
            log=Log(tensorboard=False),
            seed=self.seed,
        )

    def config_fields(self) -> dict[str, Any]:
        """Return the fields of config.json, in the released spelling."""
        return config_fields(self.model())

    def model(self) -> Model:
        """Return the shape."""
        return Model(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            vocab_size=self.vocab_size,
            max_position_embeddings=self.context,
            num_lanes=self.num_lanes,
            broadcast_delay=self.broadcast_delay,
            sliding_window=self.sliding_window,
            swa_layers=tuple(range(self.windowed_layers)),
        )

    def _check_shape(self) -> None:
        for name in (
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "vocab_size",
        ):
            if getattr(self, name) % self.num_lanes:
                raise ConfigError(
                    f"recipe: {name} must be a multiple of num_lanes {self.num_lanes}, "
                    f"got {getattr(self, name)}"
                )
        if not 0 <= self.windowed_layers <= self.num_hidden_layers:
            raise ConfigError(
                f"recipe: windowed_layers must be 0 to {self.num_hidden_layers}, "
                f"got {self.windowed_layers}"
            )
        if not 512 <= self.vocab_size <= 65536:
            raise ConfigError(
                "recipe: vocab_size must be 512 to 65536 (256 bytes, 5 special tokens and merges; "
                f"packed as uint16), got {self.vocab_size}"
            )

    def _check_run(self) -> None:
        if self.tokens_per_step % self.context or self.context % self.short_context:
            raise ConfigError(
                "recipe: tokens_per_step must be a multiple of context, and context of "
                f"short_context, got {self.tokens_per_step}, {self.context}, {self.short_context}"
            )
        for name in ("held_out_share", "warmup_share", "decay_share", "long_share"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"recipe: {name} must be in [0, 1), got {getattr(self, name)}")
        if self.tokens_per_piece % self.context and self.context % self.tokens_per_piece:
            raise ConfigError(
                "recipe: tokens_per_piece must be a multiple of context, or divide it, got "
                f"{self.tokens_per_piece} and {self.context}"
            )
        if self.warmup_share + self.decay_share > 1:
            raise ConfigError(
                "recipe: warmup_share + decay_share must be at most 1, "
                f"got {self.warmup_share} + {self.decay_share}"
            )
        if self.peak_lr <= 0 or self.clip_norm <= 0 or self.weight_decay < 0:
            raise ConfigError(
                "recipe: expected peak_lr > 0, clip_norm > 0 and weight_decay >= 0, "
                f"got {self.peak_lr}, {self.clip_norm}, {self.weight_decay}"
            )
        if self.optimiser not in ("adamw", "muon"):
            raise ConfigError(f"recipe: optimiser must be adamw or muon, got {self.optimiser!r}")
        if self.precision not in ("auto", "float32", "bfloat16"):
            raise ConfigError(
                f"recipe: precision must be auto, float32 or bfloat16, got {self.precision!r}"
            )
