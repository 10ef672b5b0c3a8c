"""The recipe of the demo model: every number that decides its weights, in one frozen value.

Lengths are shares of the run here; :meth:`DemoRecipe.run_config` lays them out over its steps. A
run's folder keeps its recipe, so a resumed run cannot drift from the run that it continues.
"""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from monolane._schedule import Wsd
from monolane._toml import Share, config, read_table
from monolane.errors import CheckpointError, ConfigError
from monolane.train._config import (
    CheckpointPolicy,
    Compute,
    Data,
    Log,
    Model,
    Optimizer,
    RunConfig,
    Schedule,
    config_fields,
)

_NAME = "recipe.json"
START = "start"  # in a run's folder, the model that it begins with
WEIGHTS, VOCABULARY = "model.safetensors", "tokenizer.json"  # of a model's folder


@config
class DemoRecipe:
    """Shape, data, optimiser and schedule of one training run."""

    seed: int = 0
    begins_with: str = ""  # SHA-256 of the first weights' file; empty: random, from the seed

    # Shape: 4.6 M parameters, so that BF16 weights stay under 10 MB.
    hidden_size: PositiveInt = 256
    intermediate_size: PositiveInt = 512
    num_hidden_layers: PositiveInt = 6
    num_attention_heads: PositiveInt = 16
    num_key_value_heads: PositiveInt = 8
    num_lanes: PositiveInt = 8
    broadcast_delay: NonNegativeInt = 2
    sliding_window: NonNegativeInt = 256
    windowed_layers: NonNegativeInt = 4  # the first n layers; the rest attend to the whole context
    # 256 bytes, 5 special tokens and merges, packed as uint16.
    vocab_size: Annotated[int, Field(ge=512, le=65536)] = 2048
    context: PositiveInt = 1024

    # Data
    held_out_share: Share = 0.025  # of the files, chosen by the hash of their content

    # Optimiser
    optimiser: Literal["adamw", "muon"] = "muon"
    tokens_per_step: PositiveInt = 4096
    tokens_per_piece: PositiveInt = 1024  # of a step that go through the model at once
    peak_lr: PositiveFloat = 3e-3
    weight_decay: NonNegativeFloat = 0.1  # on matrices only
    beta1: Share = 0.9
    beta2: Share = 0.95
    muon_momentum: Share = 0.95
    clip_norm: PositiveFloat = 1.0
    # Of matrix products; auto: the faster on this machine.
    precision: Literal["auto", "float32", "bfloat16"] = "bfloat16"

    # Schedule, as shares of the steps
    warmup_share: Share = 0.02
    decay_share: Share = 0.3
    long_share: Share = 0.25  # the last steps, at the full context; before, rows are cut
    short_context: PositiveInt = 256

    def __post_init__(self) -> None:
        heads = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
        for name in heads:
            _check_multiple(name, getattr(self, name), "num_lanes", self.num_lanes)
        if self.windowed_layers > self.num_hidden_layers:
            raise ConfigError(
                f"recipe: windowed_layers: expected at most {self.num_hidden_layers} layers, got "
                f"{self.windowed_layers}; mend it"
            )
        _check_multiple("tokens_per_step", self.tokens_per_step, "context", self.context)
        _check_multiple("context", self.context, "short_context", self.short_context)
        if self.tokens_per_piece < self.context:
            _check_multiple("context", self.context, "tokens_per_piece", self.tokens_per_piece)
        else:
            _check_multiple("tokens_per_piece", self.tokens_per_piece, "context", self.context)
        Wsd.of(1000, self.warmup_share, self.decay_share)  # its error names the two shares

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "DemoRecipe":
        """Rebuild a recipe from :meth:`to_dict`, refusing unknown names."""
        return read_table(cls, values, "recipe of a demo")

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
            optimizer=Optimizer(name=self.optimiser, **self._shared(Optimizer)),
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
        windowed = tuple(range(self.windowed_layers))
        return Model(
            **self._shared(Model), max_position_embeddings=self.context, swa_layers=windowed
        )

    def _shared(self, section: type) -> dict[str, Any]:
        """Return the fields that a section of a run config has under the same names."""
        own = asdict(self)
        return {field.name: own[field.name] for field in fields(section) if field.name in own}


def _check_multiple(name: str, value: int, of: str, unit: int) -> None:
    if value % unit:
        raise ConfigError(
            f"recipe: {name}: expected a multiple of {of} = {unit}, got {value}; mend one of them"
        )
