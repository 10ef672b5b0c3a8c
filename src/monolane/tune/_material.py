"""What a fine-tuning reads: the chats of a file, encoded, fitted to the context, in rows.

A chat is a line of JSON, with ``messages`` and, if any, ``tools``. Every line is looked at before
training begins: one that cannot be used is an error with its number, not a row that goes missing.

A row holds one chat, or several that do not see each other. Best fit, longest first: chats stay
whole, where cutting a stream into rows of one length would split an answer from its question. Each
chat counts its positions from 0, and the model masks by that, so a packed chat computes what it
computes alone.
"""

import bisect
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane.data import IGNORED, is_held_out
from monolane.errors import ConfigError, TextError
from monolane.model import ModelConfig, read_json_object
from monolane.text import ChatTemplate, Tokenizer
from monolane.tune._chat_tokens import ChatEncoder, EncodedChat
from monolane.tune._recipe import SftRecipe
from monolane.tune._windows import open_tokenizer


@dataclass(frozen=True, slots=True)
class Chat:
    """One line of a file: its number, counted from 1, and what it says."""

    line: int
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """The chats of one row of the batch."""

    chats: tuple[EncodedChat, ...]

    def __len__(self) -> int:
        return sum(map(len, self.chats))


@dataclass(frozen=True, slots=True)
class Material:
    """Rows to train on, and what of the file became of them."""

    rows: tuple[Row, ...]
    held_out: tuple[Row, ...]  # not trained on: scored
    digest: str  # SHA-256 of the file: a run resumes only on the data that it began with
    chats: int  # in the rows
    dropped: int  # too long, left out
    cut: int  # too long, cut at the context
    tokens: int
    spoken: int  # tokens that the loss counts

    def rows_digest(self) -> str:
        """Return the SHA-256 of the rows, which a tokenizer and a template made of the file."""
        state = hashlib.sha256()
        for row in (*self.rows, *self.held_out):
            for chat in row.chats:
                for part in (chat.ids, chat.spoken):
                    state.update(part.tobytes())
            state.update(f"{len(row.chats)}\n".encode())
        return state.hexdigest()


def chat_encoder(folder: Path, config: ModelConfig) -> ChatEncoder:
    """Return the encoder of a model folder; TextError where it has no tokenizer."""
    tokenizer = open_tokenizer(folder, "chats")
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
    held_out: list[EncodedChat] = []
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
        # By what it says: copies of a chat are on the same side.
        aside = is_held_out(json.dumps(chat.messages, sort_keys=True), recipe.held_out)
        (held_out if aside else chats).append(encoded)
    if not chats:
        raise TextError(f"{path}: expected chats of at most {context} tokens, found none")
    if recipe.held_out and not held_out:
        raise TextError(
            f"{path}: expected chats to hold out, found none among {len(chats)} for held_out = "
            f"{recipe.held_out:g}; raise held_out, or set it to 0"
        )
    rows = make_rows(chats, context, recipe.packing)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Material(
        rows=tuple(rows),
        held_out=tuple(make_rows(held_out, context, recipe.packing)),
        digest=digest,
        chats=len(chats),
        dropped=dropped,
        cut=cut,
        tokens=sum(map(len, chats)),
        spoken=sum(int(chat.spoken.sum()) for chat in chats),
    )


def read_chats(path: Path) -> Iterator[Chat]:
    """Yield the chats of a JSONL file; TextError names the line that holds none."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _chat(line, number, f"{path}, line {number}")
    except UnicodeDecodeError:
        raise TextError(f"{path}: expected JSON lines in UTF-8, got other bytes") from None
    except OSError as error:
        raise TextError(f"{path}: expected a file of JSON lines, got: {error.strerror}") from None


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


def _chat(line: str, number: int, where: str) -> Chat:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TextError(f"{where}: expected JSON, got: {error}") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("messages"), list):
        got = sorted(raw) if isinstance(raw, dict) else type(raw).__name__
        raise TextError(
            f"{where}: expected an object with a list 'messages' of {{role, content}}, "
            f"got {got!s:.80}"
        )
    tools = raw.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise TextError(f"{where}: tools: expected a list, got {type(tools).__name__}")
    return Chat(number, tuple(raw["messages"]), None if tools is None else tuple(tools))


def make_rows(chats: Sequence[EncodedChat], context: int, packing: bool) -> list[Row]:
    """Return the rows of at most ``context`` tokens; no chat is longer than that."""
    if not packing:
        return [Row((chat,)) for chat in chats]
    return [
        Row(tuple(chats[i] for i in places)) for places in _packed(list(map(len, chats)), context)
    ]


def _packed(lengths: Sequence[int], context: int) -> list[list[int]]:
    """Return the chats of each row: each into the fullest row with space, longest first."""
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (tokens left, row), ascending
    for place in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        at = bisect.bisect_left(free, (lengths[place], -1))
        if at == len(free):
            rows.append([])
            left, row = context, len(rows) - 1
        else:
            left, row = free.pop(at)
        rows[row].append(place)
        bisect.insort(free, (left - lengths[place], row))
    return rows


def row_arrays(rows: Sequence[Row], pad_id: int) -> dict[str, npt.NDArray[np.int64]]:
    """Return input_ids, labels and position_ids [B, T], T the longest row's length.

    Padding follows the chats, as one more sequence with positions of its own and without labels.
    """
    length = max(map(len, rows))
    ids_BT = np.full((len(rows), length), pad_id, dtype=np.int64)
    labels_BT = np.full((len(rows), length), IGNORED, dtype=np.int64)
    positions_BT = np.zeros((len(rows), length), dtype=np.int64)
    for b, row in enumerate(rows):
        begin = 0
        for chat in row.chats:
            end = begin + len(chat)
            ids_BT[b, begin:end] = chat.ids
            labels_BT[b, begin:end] = np.where(chat.spoken, chat.ids, IGNORED)
            positions_BT[b, begin:end] = np.arange(len(chat))
            begin = end
        positions_BT[b, begin:] = np.arange(length - begin)
    return {"input_ids": ids_BT, "labels": labels_BT, "position_ids": positions_BT}
