"""What a model's files give an engine, be they a folder in Hub layout or one .gguf file."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monolane.engine._defaults import SamplingDefaults
from monolane.errors import ConfigError
from monolane.model import (
    Checkpoint,
    GgufModel,
    MappedFile,
    ModelConfig,
    Weights,
    is_gguf,
    read_config,
    read_json_object,
)
from monolane.sources import packaged_defaults
from monolane.text import ChatTemplate, GgufText, InfillTokens, Tokenizer, find_infill

log = logging.getLogger("monolane.engine")


class ModelFiles(ABC):
    """A model on disk, its config read; ``open`` makes one."""

    path: Path
    config: ModelConfig
    mapped: tuple[MappedFile, ...] = ()  # that weights are read from, a draft model's too

    def check_unchanged(self) -> None:
        """CheckpointError if weights were written to, or cut short, since they were opened."""
        for file in self.mapped:
            file.check_unchanged()

    @staticmethod
    def open(path: Path) -> "ModelFiles":
        """Read the config of what is at ``path``; ConfigError or CheckpointError."""
        return GgufFiles(path) if is_gguf(path) else FolderFiles(path)

    @abstractmethod
    def weights(self) -> Weights:
        """Map the weights; CheckpointError."""

    @abstractmethod
    def ahead(self) -> Weights | None:
        """Map the layer that predicts further ahead, None where there is none; CheckpointError."""

    @abstractmethod
    def tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer, or None where there is none; TextError."""

    @abstractmethod
    def chat_template(self) -> ChatTemplate:
        """Return the chat template, or the default one; TextError."""

    @abstractmethod
    def weight_files(self) -> list[Path]:
        """Return the files that the weights are in, and what says how they are used."""

    @abstractmethod
    def eos_ids(self, tokenizer: Tokenizer | None) -> frozenset[int]:
        """Return the tokens that end an answer."""

    def infill_tokens(self, tokenizer: Tokenizer | None) -> InfillTokens | None:
        """Return the tokens to fill in the middle with, or None where the model has none."""
        return find_infill(tokenizer)

    @abstractmethod
    def sampling_defaults(self) -> SamplingDefaults:
        """Return how tokens are to be drawn where nobody says; ConfigError."""

    @abstractmethod
    def suppressed_ids(self) -> frozenset[int]:
        """Return the tokens that are never drawn, whatever a request says; ConfigError."""


class FolderFiles(ModelFiles):
    """A folder in Hub layout."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = read_config(path)

    def weights(self) -> Weights:
        """Map the weights; CheckpointError."""
        checkpoint = Checkpoint.open(self.path)
        self.mapped = checkpoint.files
        return Weights.load(self.config, checkpoint)

    def ahead(self) -> Weights | None:
        """Map the layer that predicts further ahead, None where there is none; CheckpointError."""
        return Weights.load_ahead(self.config, Checkpoint.open(self.path))

    def tokenizer(self) -> Tokenizer | None:
        """Return the folder's tokenizer.json, or None where there is none; TextError."""
        return Tokenizer.open(self.path)

    def chat_template(self) -> ChatTemplate:
        """Return the folder's chat template, or the default one; TextError."""
        return ChatTemplate.open(self.path)

    def weight_files(self) -> list[Path]:
        """Return config.json and the .safetensors files."""
        return [self.path / "config.json", *self.path.glob("*.safetensors")]

    def eos_ids(self, tokenizer: Tokenizer | None) -> frozenset[int]:
        """Return what generation_config.json says, else config.json, else the tokenizer."""
        config, eos = self.config, self._generation().get("eos_token_id")
        ids = eos if isinstance(eos, list) else [eos] if eos is not None else []
        if not all(type(i) is int and 0 <= i < config.vocab_size for i in ids):
            raise ConfigError(
                f"{self._generation_path}: eos_token_id: expected token ids below "
                f"{config.vocab_size}, got {eos!r:.80}"
            )
        if ids:
            return frozenset(ids)
        if config.eos_ids:
            return frozenset(config.eos_ids)
        eos_id = tokenizer.eos_id if tokenizer else None
        return frozenset() if eos_id is None else frozenset((eos_id,))

    def sampling_defaults(self) -> SamplingDefaults:
        """Return what generation_config.json says; ConfigError."""
        return SamplingDefaults.of_config(self._generation(), str(self._generation_path))

    def suppressed_ids(self) -> frozenset[int]:
        """Return what generation_config.json says, as Transformers reads it; ConfigError."""
        said, path = self._generation(), self._generation_path
        if said.get("begin_suppress_tokens"):
            log.warning(
                "%s: begin_suppress_tokens is ignored: an answer may begin with those tokens, "
                "which Transformers would not draw first",
                path,
            )
        ids = said.get("suppress_tokens") or []
        if not isinstance(ids, list) or not all(type(i) is int for i in ids):
            raise ConfigError(f"{path}: suppress_tokens: expected token ids, got {ids!r:.80}")
        # As there, ids of no token say nothing: files have -1 for none.
        return frozenset(i for i in ids if 0 <= i < self.config.vocab_size)

    @property
    def _generation_path(self) -> Path:
        return self.path / "generation_config.json"

    def _generation(self) -> Mapping[str, Any]:
        path = self._generation_path
        return read_json_object(path) if path.is_file() else {}


class GgufFiles(ModelFiles):
    """A .gguf file, or the first of its parts: everything is in its metadata."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._model = GgufModel(path)
        self.mapped = tuple(part.file for part in self._model.parts)
        self.config = self._model.config
        self._text = GgufText.open(self._model.metadata, path, self._model.embedding_rows)

    def weights(self) -> Weights:
        """View the weights; CheckpointError."""
        return Weights.of_gguf(self._model)

    def ahead(self) -> Weights | None:
        """View the layer that predicts further ahead, None where there is none; CheckpointError."""
        return Weights.ahead_of_gguf(self._model)

    def tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer of the metadata, or None where there is none; TextError."""
        return None if self._text is None else Tokenizer.of_gguf(self._text)

    def chat_template(self) -> ChatTemplate:
        """Return the chat template of the metadata, or the default one; TextError."""
        return ChatTemplate() if self._text is None else ChatTemplate.of_gguf(self._text)

    def weight_files(self) -> list[Path]:
        """Return the file, or all of its parts."""
        return [part.path for part in self._model.parts]

    def eos_ids(self, tokenizer: Tokenizer | None) -> frozenset[int]:
        """Return the ids that the metadata name, and control tokens known to end a turn."""
        known = () if self._text is None else self._text.ending_ids
        return frozenset((*self.config.eos_ids, *known))

    def sampling_defaults(self) -> SamplingDefaults:
        """Return what the metadata say, and what we know of a packaged model; ConfigError."""
        said = SamplingDefaults.of_gguf(self._model.metadata, str(self.path))
        return said.over(SamplingDefaults(**packaged_defaults(self.path)))

    def suppressed_ids(self) -> frozenset[int]:
        """Return the ids that the metadata list."""
        return frozenset(() if self._text is None else self._text.suppressed_ids)

    def infill_tokens(self, tokenizer: Tokenizer | None) -> InfillTokens | None:
        """Return those that the metadata name, or that are spelled as such."""
        return find_infill(tokenizer, self._model.metadata)
