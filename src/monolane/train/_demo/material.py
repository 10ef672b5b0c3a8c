"""What the demo trains and is judged on: Python's own library, its vocabulary, and its ids.

The ids become a prepared corpus like any other, in the run's folder: the loop reads nothing else.
The text stays here with its names: the card tells the library's tests from the library proper, and
compressors are measured on text. Which files there are, and which are held out, is said by the
package ``data`` all the same.
"""

import hashlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np
from tokenizers import Tokenizer

from monolane._progress import Report, shown_progress
from monolane.data import (
    Corpus,
    Encoded,
    is_held_out,
    library_texts,
    train_vocabulary,
    write_corpus,
    write_vocabulary,
)
from monolane.errors import CheckpointError, DataError
from monolane.train._demo.recipe import DemoRecipe

BOS, EOS = 1, 2  # as the vocabulary of the package ``data`` numbers them
_TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})


@dataclass(frozen=True)
class Document:
    """One source file: its path inside the library, and its text."""

    name: str
    text: str

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the text's UTF-8, as hex."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def size(self) -> int:
        """Bytes of the text in UTF-8."""
        return len(self.text.encode())

    @property
    def is_test(self) -> bool:
        """Whether the file belongs to a test suite."""
        return not _TEST_FOLDERS.isdisjoint(PurePosixPath(self.name).parts[:-1])


@dataclass(frozen=True)
class Library:
    """Documents to train on and documents that training never sees."""

    train: tuple[Document, ...]
    held_out: tuple[Document, ...]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over both halves: a run resumes only on the library that it began with."""
        state = hashlib.sha256()
        for half in (self.train, self.held_out):
            for document in half:
                state.update(bytes.fromhex(document.digest))
            state.update(b"|")
        return state.hexdigest()


@dataclass(frozen=True)
class Material:
    """Both halves of the library as text and as ids; a pure function of recipe and library."""

    library: Library
    tokenizer: Tokenizer
    train: tuple[np.ndarray, ...]
    held_out: tuple[np.ndarray, ...]


def read_library(root: Path | None, held_out_share: float) -> Library:
    """Read the library below ``root`` (the running Python's if None); DataError if it is empty."""
    train: list[Document] = []
    held_out: list[Document] = []
    for name, text in library_texts(root):
        half = held_out if is_held_out(text, held_out_share) else train
        half.append(Document(name, text))
    return Library(tuple(train), tuple(held_out))


def prepare_material(
    recipe: DemoRecipe, root: Path | None = None, tokenizer: Tokenizer | None = None
) -> Material:
    """Read the library and encode both halves.

    Where no vocabulary is given, one is trained on the training half.
    """
    library = read_library(root, recipe.held_out_share)
    if not library.train or not library.held_out:
        raise DataError(
            "expected files on both sides of the held-out split, got "
            f"{len(library.train)} to train on and {len(library.held_out)} held out; "
            "use more files or another held_out_share"
        )
    if tokenizer is None:
        texts = (document.text for document in library.train)
        tokenizer = train_vocabulary(texts, recipe.vocab_size)
    with shown_progress() as progress:
        return Material(
            library,
            tokenizer,
            _encode(progress, "encoding training files", tokenizer, library.train),
            _encode(progress, "encoding held-out files", tokenizer, library.held_out),
        )


def prepare_corpus(material: Material, recipe: DemoRecipe, run: Path, resume: bool) -> Path:
    """Return the folder of the prepared corpus of a run, which is written where it is new.

    CheckpointError where a run is resumed on another library than it began with.
    """
    folder, note = run / "corpus", run / "library.sha256"
    if resume:
        kept = note.read_text(encoding="ascii").strip() if note.is_file() else ""
        if kept != material.library.digest or not Corpus.open(folder).sources:
            raise CheckpointError(
                f"expected the corpus {kept[:12]} that the run began with, got "
                f"{material.library.digest[:12]}; resume with the same Python installation, or "
                "start anew"
            )
        return folder
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed before its first step
    vocabulary = run / "vocabulary"
    write_vocabulary(material.tokenizer, vocabulary, recipe.context)
    halves = (
        _framed(material.train, material.library.train),
        _framed(material.held_out, material.library.held_out),
    )
    write_corpus(folder, vocabulary, {"library": halves})
    note.write_text(material.library.digest + "\n", encoding="ascii")
    return folder


def _framed(ids: Sequence[np.ndarray], documents: Sequence[Document]) -> Iterator[Encoded]:
    return (Encoded(one, document.size) for one, document in zip(ids, documents, strict=True))


def _encode(
    progress: Report, label: str, tokenizer: Tokenizer, documents: Sequence[Document]
) -> tuple[np.ndarray, ...]:
    found = []
    texts = (document.text for document in documents)
    for ids in encode_documents(tokenizer, texts):
        found.append(ids)
        progress(label, len(found), len(documents))
    return tuple(found)


def encode_documents(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[np.ndarray]:
    """Yield each text as uint16 ids [T], from ``<s>`` to ``</s>``.

    Source that spells a control token is text like any other.
    """
    tokenizer.encode_special_tokens = True
    try:
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            yield np.array([BOS, *ids, EOS], dtype=np.uint16)
    finally:
        tokenizer.encode_special_tokens = False
