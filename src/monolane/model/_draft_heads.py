"""Heads that draft, in a folder: config.json and model.safetensors.

Not a model: they read what a model's own head reads. csrc/draft/heads_drafter.h tells what is
computed, docs/speculation.md why it is that. Both files are checked before a number of them is
used.

Shape legend: D hidden, F inner, R drafted vocabulary, V vocabulary of the model.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from monolane.errors import CheckpointError, ConfigError
from monolane.model._config import ModelConfig
from monolane.model._fields import Fields, read_json_object
from monolane.model._safetensors import SafetensorsFile, write_safetensors

MODEL_TYPE = "monolane_heads"
GROUP = 32  # columns that share a scale in the int8 products: every width is a multiple
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """What drafts the next tokens of one model.

    gate, up    float32 [F, 2D], of the state and the embedding of the token before
    down        float32 [D, F]
    head        float32 [R, D]
    tokens      int32 [R], the model's id of each row of ``head``, each once
    vocab_size  V
    norm_eps    of all norms, which have no scales
    """

    gate: Floats
    up: Floats
    down: Floats
    head: Floats
    tokens: npt.NDArray[np.int32]
    vocab_size: int
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        """ConfigError unless shapes fit together and every token is one of the model's."""
        hidden, inner = self.down.shape
        for name, shape in _shapes(hidden, inner, len(self.tokens)).items():
            found = getattr(self, name).shape
            if found != shape:
                raise ConfigError(f"heads: {name}: expected {list(shape)}, got {list(found)}")
        for what, size in (("hidden_size", hidden), ("inner_size", inner)):
            if size % GROUP:
                raise ConfigError(
                    f"heads: {what}: expected a multiple of {GROUP}, in which the products group "
                    f"columns, got {size}"
                )
        ids = np.unique(self.tokens)
        if len(ids) != len(self.tokens) or ids[0] < 0 or ids[-1] >= self.vocab_size:
            raise ConfigError(
                f"heads: tokens: expected ids from 0 to {self.vocab_size - 1}, each once, got "
                f"{len(ids)} of {len(self.tokens)} different, from {ids[0]} to {ids[-1]}"
            )

    @property
    def hidden_size(self) -> int:
        """D."""
        return int(self.down.shape[0])

    @property
    def inner_size(self) -> int:
        """F."""
        return int(self.down.shape[1])

    def check(self, config: ModelConfig, source: str) -> None:
        """ConfigError unless these are of a model's shapes; ``source`` names them in it."""
        for name, mine in (("hidden_size", self.hidden_size), ("vocab_size", self.vocab_size)):
            wanted = getattr(config, name)
            if mine != wanted:
                raise ConfigError(
                    f"{source}: {name}: expected {wanted}, the model's, got {mine}; train heads of "
                    "this model with 'monolane tune heads'"
                )

    @staticmethod
    def open(folder: Path) -> "Heads":
        """Read a folder; ConfigError or CheckpointError says which file and what of it is wrong."""
        fields = Fields(read_json_object(folder / _CONFIG), str(folder / _CONFIG))
        if not is_heads(folder):
            raise fields.fault("model_type", repr(MODEL_TYPE), "; 'monolane tune heads' makes such")
        sizes = [fields.size(n) for n in ("hidden_size", "inner_size", "draft_vocab_size")]
        path = folder / _WEIGHTS
        file = SafetensorsFile(path)
        found: dict[str, npt.NDArray[Any]] = {}
        for name, shape in _shapes(*sizes).items():
            kinds = ("int32",) if name == "tokens" else ("bfloat16", "float16", "float32")
            if name not in file:
                raise CheckpointError(f"{path}: {name}: expected it, got {', '.join(sorted(file))}")
            array = file[name]
            if array.shape != shape or array.dtype.name not in kinds:
                raise CheckpointError(
                    f"{path}: {name}: expected {' or '.join(kinds)} {list(shape)}, as {_CONFIG} "
                    f"has it, got {array.dtype.name} {list(array.shape)}"
                )
            found[name] = array.astype(np.int32 if name == "tokens" else np.float32)
            if not np.isfinite(found[name]).all():
                raise CheckpointError(f"{path}: {name}: expected finite numbers, got others")
        file.file.check_unchanged()  # all is copied by now
        try:
            vocab, eps = fields.size("vocab_size"), fields.number("norm_eps")
            return Heads(**found, vocab_size=vocab, norm_eps=eps)
        except ConfigError as error:
            raise ConfigError(f"{folder}: {error}") from None

    def write(self, folder: Path) -> None:
        """Write the folder, which is there; weights as bfloat16."""
        config = {
            "model_type": MODEL_TYPE,
            "hidden_size": self.hidden_size,
            "inner_size": self.inner_size,
            "vocab_size": self.vocab_size,
            "draft_vocab_size": len(self.tokens),
            "norm_eps": self.norm_eps,
        }
        text = json.dumps(config, indent=2) + "\n"
        (folder / _CONFIG).write_text(text, encoding="utf-8")
        names = ("gate", "up", "down", "head")
        arrays = [(name, getattr(self, name).astype(ml_dtypes.bfloat16)) for name in names]
        write_safetensors(folder / _WEIGHTS, [*arrays, ("tokens", self.tokens.astype(np.int32))])


def is_heads(folder: Path) -> bool:
    """Tell whether a folder's config.json says that it holds heads; ConfigError if no JSON."""
    path = folder / _CONFIG
    return path.is_file() and read_json_object(path).get("model_type") == MODEL_TYPE


def _shapes(hidden: int, inner: int, drafted: int) -> dict[str, tuple[int, ...]]:
    block = (inner, 2 * hidden)
    return {
        "gate": block,
        "up": block,
        "down": (hidden, inner),
        "head": (drafted, hidden),
        "tokens": (drafted,),
    }


def check_heads(config: ModelConfig, source: str) -> None:
    """ConfigError for a model of which no heads are trained."""
    if (hidden := config.hidden_size) % 32:
        raise ConfigError(
            f"{source}: hidden_size: expected a multiple of 32 for heads, got {hidden}"
        )
