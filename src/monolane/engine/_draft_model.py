"""Who is to draft: which model or heads are named, and whether their tokens are the model's."""

from dataclasses import dataclass, replace
from pathlib import Path

from monolane.engine._files import ModelFiles
from monolane.errors import ConfigError
from monolane.model import (
    Assistant,
    Dflash,
    Eagle,
    Heads,
    MappedFile,
    Weights,
    is_assistant,
    is_dflash,
    is_eagle,
    is_heads,
    is_nextn,
    open_nextn,
)
from monolane.sources import expand_path, find_model
from monolane.text import Tokenizer

OWN = ("int4", "int8")  # the model itself, in fewer bits
AHEAD = "mtp"  # its own layer that predicts further ahead


@dataclass(frozen=True, slots=True)
class DraftModel:
    """Weights, heads, a drafter or an assistant, and the type in which weights are used.

    None: as the model's.

    ``mapped``: the files that they are read from while they draft, beside the model's own.
    """

    weights: Weights | Heads | Eagle | Dflash | Assistant
    dtype: str | None
    mapped: tuple[MappedFile, ...] = ()

    @staticmethod
    def open(
        draft: str | Path, files: ModelFiles, weights: Weights, tokenizer: Tokenizer | None
    ) -> "DraftModel":
        """Find what drafts for a model; ConfigError if its tokens or shapes are others.

        draft   "int4" or "int8", the model itself; "mtp", its layer that predicts further ahead; a
                model as ``Engine.load`` takes it; or a folder of heads, of such a layer (NextN), of
                an EAGLE-3 or DFlash drafter or of an assistant, which its config.json tells
        """
        if draft in OWN:
            return DraftModel(weights, str(draft))
        if draft == AHEAD:
            return DraftModel.open_ahead(files, weights)
        path = find_model(draft)
        if is_heads(path):
            return DraftModel.open_heads(path, files)
        if is_assistant(path):
            assistant = Assistant.open(path)
            assistant.check(files.config, str(path))
            return DraftModel(assistant, "auto", assistant.mapped)
        if is_nextn(path):
            return DraftModel.of_ahead(open_nextn(path, weights), weights)
        if is_dflash(path):
            dflash = Dflash.open(path)
            dflash.check(files.config, str(path))
            return DraftModel(dflash, "auto")
        if is_eagle(path):
            eagle = Eagle.open(path)
            eagle.check(files.config, str(path))
            return DraftModel(eagle, "auto")
        found = ModelFiles.open(path)
        _check_tokens(files, tokenizer, found, found.tokenizer())
        weights = found.weights()
        return DraftModel(weights, "auto", found.mapped)

    @staticmethod
    def open_ahead(files: ModelFiles, weights: Weights) -> "DraftModel":
        """Read a model's layer that predicts further ahead; ConfigError where it has none."""
        ahead = files.ahead()
        if ahead is None:
            raise ConfigError(
                f"draft: expected layers that predict further ahead, which {AHEAD!r} asks for, got "
                f"{files.path}, a {files.config.family} model in which none is known; many .gguf "
                "files are made without them: take another one, the model's folder, or leave it out"
            )
        return DraftModel.of_ahead(ahead, weights)

    @staticmethod
    def of_ahead(ahead: Weights, weights: Weights) -> "DraftModel":
        """Return what drafts by a layer that predicts further ahead."""
        # As long as the model's, and stretched as that is.
        stretched = replace(ahead.config, rotary=weights.config.rotary)
        return DraftModel(replace(ahead, config=stretched), None)

    @staticmethod
    def open_heads(folder: str | Path, files: ModelFiles) -> "DraftModel":
        """Read heads of a model; ConfigError or CheckpointError."""
        path = expand_path(folder)
        if not (path / "config.json").is_file():
            raise ConfigError(
                f"heads: expected a folder that 'monolane tune heads' wrote, got {path}, which "
                "has no config.json"
            )
        heads = Heads.open(path)
        heads.check(files.config, str(path))
        return DraftModel(heads, "auto")


def _check_tokens(
    files: ModelFiles, tokenizer: Tokenizer | None, draft: ModelFiles, other: Tokenizer | None
) -> None:
    """ConfigError unless each id means the same to both."""
    if tokenizer is None or other is None:
        sizes = files.config.vocab_size, draft.config.vocab_size
        if tokenizer is other and sizes[0] == sizes[1]:
            return
        which = files.path if tokenizer is None else draft.path
        raise ConfigError(
            f"draft: expected a model with the same tokenizer, got {draft.path}: {which} has none, "
            f"and the vocabularies have {sizes[0]} and {sizes[1]} tokens; use 'int4' or 'int8', "
            "the model itself in fewer bits"
        )
    mine, theirs = tokenizer.vocabulary(), other.vocabulary()
    if mine == theirs:
        return
    pairs = ((token, id_, theirs.get(token)) for token, id_ in mine.items())
    differs = next((pair for pair in pairs if pair[1] != pair[2]), None)
    what = (
        f"{len(theirs) - len(mine)} tokens more"
        if differs is None
        else f"{differs[0]!r:.40} is {differs[1]} in the one and {differs[2]} in the other"
    )
    raise ConfigError(
        f"draft: expected a model with the same tokenizer as {files.path}, got {draft.path}: "
        f"{what}; use one of the same family, or 'int4' or 'int8', the model itself in fewer bits"
    )
