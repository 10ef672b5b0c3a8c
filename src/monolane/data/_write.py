"""Writing a corpus folder: documents that are ids already become token files and a manifest.

Preparation ends here, and so does anything that makes its own ids: a test, or a synthetic task.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from monolane.data._corpus import HELD_OUT_BYTES, TOKENIZER, Corpus, Encoded, digest_of
from monolane.data._manifest import Half, Manifest, Source, dtype_name
from monolane.data._recipe import TokenizerRecipe
from monolane.data._tokens import ENDS, Part
from monolane.errors import DataError
from monolane.text import Tokenizer

_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")


class PartWriter:
    """Writes one part, document by document; ``part`` describes it once the writer is closed."""

    def __init__(self, folder: Path, stem: str, dtype: np.dtype) -> None:
        path = folder / f"{stem}.ds"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._stem = stem
        self._dtype = dtype
        self._ids: BinaryIO = path.open("wb")
        self._ends: BinaryIO = path.with_name(f"{path.name}.index").open("wb")
        self._documents = 0
        self._tokens = 0

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._ids.close()
        self._ends.close()

    def add(self, ids: np.ndarray) -> None:
        """Add a document of at least one id; DataError if the type cannot hold an id."""
        if not len(ids):
            raise DataError("expected a document of at least one id, got none; leave it out")
        if int(ids.min()) < 0 or int(ids.max()) > np.iinfo(self._dtype).max:
            raise DataError(
                f"expected ids from 0 to {np.iinfo(self._dtype).max}, got {ids.min()} to "
                f"{ids.max()}; encode with the corpus's own tokenizer"
            )
        self._tokens += len(ids)
        self._documents += 1
        self._ids.write(ids.astype(self._dtype).tobytes())
        self._ends.write(ENDS.type(self._tokens).tobytes())

    def part(self) -> Part:
        """Describe what has been written; reads it once for the digest."""
        assert self._ids.closed
        digest = digest_of(self._folder, self._stem)
        return Part(self._stem, self._documents, self._tokens, digest)


def write_corpus(
    folder: Path,
    tokenizer: Path,
    sources: Mapping[str, tuple[Iterable[Encoded], Iterable[Encoded]]],
) -> Corpus:
    """Write a corpus of documents that are ids already, and open it.

    ``tokenizer`` is a folder with tokenizer.json; ``sources`` maps a name to its documents to train
    on and those held out, in the order that they shall have. DataError: ``folder`` exists.
    """
    if folder.exists():
        raise DataError(f"{folder}: expected no folder there yet; remove it, or name another")
    partial = folder.with_name(f"{folder.name}.writing")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    manifest = start_manifest(partial, tokenizer)
    written = []
    for name, (train, held_out) in sources.items():
        halves = {
            half: _write_half(partial, name, half, documents, manifest.ids_dtype)
            for half, documents in (("train", train), ("held_out", held_out))
        }
        read = sum(half.documents for half in halves.values())
        written.append(Source(name, halves["train"], halves["held_out"], read))
    replace(manifest, sources=tuple(written)).write(partial)
    partial.rename(folder)
    return Corpus.open(folder)


def start_manifest(folder: Path, tokenizer: Path, **fields: Any) -> Manifest:
    """Copy the tokenizer's files into a corpus folder, and return its manifest without sources."""
    opened = Tokenizer.open(tokenizer)
    if opened is None:
        raise DataError(f"{tokenizer}: expected a folder with {TOKENIZER}, found none")
    for name in (TOKENIZER, *_SETTINGS):
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, folder / name)
    return Manifest(
        tokenizer=hashlib.sha256((folder / TOKENIZER).read_bytes()).hexdigest(),
        vocabulary_size=opened.vocab_size,
        dtype=dtype_name(opened.vocab_size),
        bos_id=opened.bos_id,
        eos_id=opened.eos_id,
        sources=(),
        **fields,
    )


def copy_tokenizer(recipe: TokenizerRecipe, folder: Path) -> None:
    """Copy a recipe's tokenizer; DataError where it, or a token to end documents with, is missing.

    The recipe's bos and eos go before those of tokenizer_config.json.
    """
    given = Path(recipe.path)
    given = given.parent if given.is_file() and given.name == TOKENIZER else given
    if not (given / TOKENIZER).is_file():
        raise DataError(
            f"tokenizer.path: expected a folder with {TOKENIZER}, or that file, got {recipe.path}"
        )
    for name in (TOKENIZER, *_SETTINGS):
        if (given / name).is_file():
            shutil.copyfile(given / name, folder / name)
    named = {"bos_token": recipe.bos, "eos_token": recipe.eos}
    if said := {key: value for key, value in named.items() if value is not None}:
        path = folder / _SETTINGS[0]
        settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        path.write_text(json.dumps({**settings, **said}, indent=2) + "\n", encoding="utf-8")
    tokenizer = Tokenizer.open(folder)
    assert tokenizer is not None
    if tokenizer.eos_id is None:
        raise DataError(
            f"{given}: expected an eos_token that ends each document, found none; "
            "name one of the vocabulary as eos of the recipe's tokenizer"
        )


def _write_half(
    folder: Path, source: str, half: str, documents: Iterable[Encoded], dtype: np.dtype
) -> Half:
    sizes = []
    with PartWriter(folder, f"{source}/{half}-00000", dtype) as writer:
        for document in documents:
            writer.add(document.ids)
            sizes.append(document.bytes)
    if half == "held_out":
        np.array(sizes, dtype=ENDS).tofile(folder / source / HELD_OUT_BYTES)
    part = writer.part()
    return Half(sum(sizes), (part,) if part.documents else ())
