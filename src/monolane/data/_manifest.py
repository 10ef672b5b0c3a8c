"""``corpus.json``: what a prepared corpus holds, and the one owner of its spelling.

Sizes of files follow from it, so a corpus that was copied in half is refused when it is opened.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict

from monolane._toml import read_table
from monolane.data._tokens import Part
from monolane.errors import DataError

MANIFEST = "corpus.json"
FORMAT = "monolane-corpus"
VERSION = 1


@dataclass(frozen=True)
class Half:
    """What training reads of a source, or never sees of it: parts, and the bytes of their text."""

    bytes: int  # of UTF-8
    parts: tuple[Part, ...]

    @property
    def documents(self) -> int:
        """Documents in all parts."""
        return sum(part.documents for part in self.parts)

    @property
    def tokens(self) -> int:
        """Tokens in all parts, with bos and eos."""
        return sum(part.tokens for part in self.parts)

    @property
    def tokens_per_byte(self) -> float:
        """How many tokens a byte takes; 0 for an empty half."""
        return self.tokens / self.bytes if self.bytes else 0.0

    @property
    def digest(self) -> str:
        """SHA-256 of the parts' digests, as hex."""
        return hashlib.sha256("".join(part.digest for part in self.parts).encode()).hexdigest()


@dataclass(frozen=True)
class Source:
    """One source: its halves, how many documents were read for it, and what filters dropped."""

    name: str
    train: Half
    held_out: Half
    read: int
    dropped: Mapping[str, int] = field(default_factory=dict)  # filter -> documents


@dataclass(frozen=True)
class Manifest:
    """The contents of ``corpus.json``; digests are SHA-256 as hex."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    tokenizer: str  # digest of tokenizer.json
    vocabulary_size: int
    dtype: Literal["uint16", "uint32"]  # of the token files
    bos_id: int | None
    eos_id: int | None
    sources: tuple[Source, ...]
    recipe: Mapping[str, Any] = field(default_factory=dict)  # as it was prepared
    stages: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # stage -> weights

    @cached_property
    def digest(self) -> str:
        """Of the tokenizer and of every half: a run resumes only on what it began with."""
        state = hashlib.sha256(bytes.fromhex(self.tokenizer))
        for source in sorted(self.sources, key=lambda source: source.name):
            for part in (source.name, source.train.digest, source.held_out.digest):
                state.update(part.encode() + b"\n")
        return state.hexdigest()

    @property
    def ids_dtype(self) -> np.dtype:
        """Of the ids on disk, little-endian."""
        return ids_type(self.dtype)

    def write(self, folder: Path) -> None:
        """Write ``corpus.json``: last of all files, so that a folder with it is whole."""
        value = {"format": FORMAT, "version": VERSION, **asdict(self)}
        text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
        (folder / MANIFEST).write_text(text, encoding="utf-8")

    @staticmethod
    def read(folder: Path) -> "Manifest":
        """Read it back; DataError says what is missing or of another version."""
        path = folder / MANIFEST
        if not path.is_file():
            raise DataError(
                f"{folder}: expected a prepared corpus with {MANIFEST}, found none; "
                "make one: monolane data prepare RECIPE.toml -o OUT"
            )
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            kind = (value.pop("format"), value.pop("version"))
            manifest = read_table(Manifest, value, MANIFEST)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}: expected the fields of a corpus, got {type(error).__name__}: {error}; "
                "copy the corpus again, or prepare it anew"
            ) from None
        if kind != (FORMAT, VERSION):
            raise DataError(
                f"{path}: expected {FORMAT} version {VERSION}; prepare the corpus anew with "
                "this version of monolane"
            )
        return manifest


def dtype_name(vocabulary_size: int) -> Literal["uint16", "uint32"]:
    """Return the smaller of the two types that hold every id."""
    return "uint16" if vocabulary_size <= 1 << 16 else "uint32"


def ids_type(name: str) -> np.dtype:
    """Return the little-endian type of a name that ``dtype_name`` gives."""
    return np.dtype(name).newbyteorder("<")
