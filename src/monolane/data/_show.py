"""A row as text, with the borders of its documents: what a model is fed, before it is fed."""

from dataclasses import dataclass

import numpy as np

from monolane.data._blend import NO_DOCUMENT, Blend
from monolane.data._corpus import Corpus


@dataclass(frozen=True)
class Piece:
    """The part of a row that belongs to one document, or its padding (``document`` is None)."""

    document: int | None  # number in its source
    first: int  # token of the row
    tokens: int
    begins: bool  # with the document, or in the middle of it
    text: str


@dataclass(frozen=True)
class ShownRow:
    """A row in words."""

    source: str
    epoch: int
    pieces: tuple[Piece, ...]


def show_row(corpus: Corpus, blend: Blend, number: int) -> ShownRow:
    """Return row ``number`` of a blend of the corpus as text; control tokens are spelled out."""
    source, place = blend.place(number)
    rows = blend.rows(number, 1)
    ids, documents = rows.ids[0], rows.documents[0]
    files = corpus.train(source)
    pieces = []
    for index in dict.fromkeys(documents.tolist()):
        at = np.flatnonzero(documents == index)
        first, count = int(at[0]), len(at)
        if index == NO_DOCUMENT:
            pieces.append(Piece(None, first, count, False, ""))
            continue
        position = (place.turn + place.start + first) % files.tokens
        _, begins = files.read(position, position + 1)
        text = corpus.tokenizer.decode(ids[at].tolist(), skip_special_tokens=False)
        pieces.append(Piece(files.document_at(position), first, count, bool(begins[0]), text))
    return ShownRow(source, place.epoch, tuple(pieces))
