"""What the demo trains and is judged on: the library, the vocabulary made from it, and its ids.

The ids become a prepared corpus like any other, in the run's folder: the loop reads nothing else.
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress
from tokenizers import Tokenizer

from monolane.data import Corpus, Encoded, train_vocabulary, write_corpus, write_vocabulary
from monolane.errors import CheckpointError, DataError
from monolane.train._demo.library import Document, Library, read_library
from monolane.train._demo.recipe import DemoRecipe

BOS, EOS = 1, 2  # as the vocabulary of the package ``data`` numbers them


@dataclass(frozen=True)
class Material:
    """Both halves of the library as text and as ids; a pure function of recipe and library."""

    library: Library
    tokenizer: Tokenizer
    train: tuple[np.ndarray, ...]
    held_out: tuple[np.ndarray, ...]


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
    with Progress(console=Console(stderr=True), transient=True) as progress:
        return Material(
            library,
            tokenizer,
            _encode(progress, "encode training files", tokenizer, library.train),
            _encode(progress, "encode held-out files", tokenizer, library.held_out),
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
    progress: Progress, label: str, tokenizer: Tokenizer, documents: Sequence[Document]
) -> tuple[np.ndarray, ...]:
    texts = progress.track(
        (document.text for document in documents), total=len(documents), description=label
    )
    return tuple(encode_documents(tokenizer, texts))


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
