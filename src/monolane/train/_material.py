"""What a run trains and is judged on: the corpus, the vocabulary made from it, and its ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress
from tokenizers import Tokenizer

from monolane.errors import TextError
from monolane.train._corpus import Corpus, Document, collect_library, split_corpus
from monolane.train._recipe import DemoRecipe
from monolane.train._vocabulary import encode_documents, train_vocabulary


@dataclass(frozen=True)
class Material:
    """Both halves of the corpus as text and as ids; a pure function of recipe and library."""

    corpus: Corpus
    tokenizer: Tokenizer
    train: tuple[np.ndarray, ...]
    held_out: tuple[np.ndarray, ...]


def prepare_material(recipe: DemoRecipe, library: Path | None = None) -> Material:
    """Collect the library, train the vocabulary on the training half, and encode both halves."""
    corpus = split_corpus(collect_library(library), recipe.held_out_share)
    if not corpus.train or not corpus.held_out:
        raise TextError(
            "expected files on both sides of the held-out split, got "
            f"{len(corpus.train)} to train on and {len(corpus.held_out)} held out; "
            "use more files or another held_out_share"
        )
    tokenizer = train_vocabulary((document.text for document in corpus.train), recipe.vocab_size)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        return Material(
            corpus,
            tokenizer,
            _encode(progress, "encode training files", tokenizer, corpus.train),
            _encode(progress, "encode held-out files", tokenizer, corpus.held_out),
        )


def _encode(
    progress: Progress, label: str, tokenizer: Tokenizer, documents: Sequence[Document]
) -> tuple[np.ndarray, ...]:
    texts = progress.track(
        (document.text for document in documents), total=len(documents), description=label
    )
    return tuple(encode_documents(tokenizer, texts))
