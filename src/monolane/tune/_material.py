"""What a fine-tuning reads: the chats of a file, encoded, fitted to the context, in rows."""

from dataclasses import dataclass
from pathlib import Path

from monolane.errors import ConfigError, TextError
from monolane.model import ModelConfig, read_json_object
from monolane.text import ChatTemplate, Tokenizer
from monolane.tune._chats import Chat, data_digest, read_chats
from monolane.tune._encoded import ChatEncoder, EncodedChat
from monolane.tune._recipe import SftRecipe
from monolane.tune._rows import Row, make_rows


@dataclass(frozen=True, slots=True)
class Material:
    """Rows to train on, and what of the file became of them."""

    rows: tuple[Row, ...]
    digest: str  # SHA-256 of the file
    chats: int  # in the rows
    dropped: int  # too long, left out
    cut: int  # too long, cut at the context
    tokens: int
    spoken: int  # tokens that the loss counts


def chat_encoder(folder: Path, config: ModelConfig) -> ChatEncoder:
    """Return the encoder of a model folder; TextError where it has no tokenizer."""
    tokenizer = Tokenizer.open(folder)
    if tokenizer is None:
        raise TextError(f"{folder}: expected a tokenizer.json, to turn chats into tokens")
    return ChatEncoder(ChatTemplate.open(folder), tokenizer, end_ids(folder, config, tokenizer))


def end_ids(folder: Path, config: ModelConfig, tokenizer: Tokenizer) -> frozenset[int]:
    """Return the ids at which the engine ends an answer, from the first of the files that say."""
    path = folder / "generation_config.json"
    if path.is_file():
        named = read_json_object(path).get("eos_token_id")
        if named is not None:
            return frozenset(named if isinstance(named, list) else [named])
    if config.eos_ids:
        return frozenset(config.eos_ids)
    return frozenset(() if tokenizer.eos_id is None else (tokenizer.eos_id,))


def prepare_material(path: Path, encoder: ChatEncoder, context: int, recipe: SftRecipe) -> Material:
    """Encode every chat of ``path``; TextError names the line of one that cannot be used."""
    chats: list[EncodedChat] = []
    dropped = cut = 0
    for chat in read_chats(path):
        encoded = _encoded(encoder, chat, path)
        if len(encoded) > context:
            if recipe.too_long == "refuse":
                raise TextError(
                    f"{path}, line {chat.line}: expected at most {context} tokens, got "
                    f"{len(encoded)}; set too_long to drop or cut, or give more context"
                )
            encoded = encoded.cut(context)
            if recipe.too_long == "drop" or not encoded.spoken.any():
                dropped += 1
                continue
            cut += 1
        chats.append(encoded)
    if not chats:
        raise TextError(f"{path}: expected chats of at most {context} tokens, found none")
    rows = make_rows(chats, context, recipe.packing)
    return Material(
        rows=tuple(rows),
        digest=data_digest(path),
        chats=len(chats),
        dropped=dropped,
        cut=cut,
        tokens=sum(map(len, chats)),
        spoken=sum(int(chat.spoken.sum()) for chat in chats),
    )


def trained_context(config: ModelConfig, recipe: SftRecipe) -> int:
    """Return the length of a row; ConfigError if it is more than the model has."""
    context = recipe.context or config.max_positions
    if context > config.max_positions:
        raise ConfigError(
            f"context: expected at most the model's {config.max_positions} tokens, got {context}"
        )
    return context


def _encoded(encoder: ChatEncoder, chat: Chat, path: Path) -> EncodedChat:
    try:
        return encoder.encode(chat.messages, chat.tools)
    except TextError as error:
        raise TextError(f"{path}, line {chat.line}: {error}") from None
