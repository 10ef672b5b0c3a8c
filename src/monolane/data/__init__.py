"""Data: from files to a prepared corpus, and from a corpus to the rows that training reads.

Reading needs nothing beside the base install, preparation ``pip install 'monolane[data]'``.
"""

from monolane.data._blend import IGNORED, NO_DOCUMENT, Blend, Rows
from monolane.data._corpus import Corpus, HeldOut, HeldOutDocument
from monolane.data._figures import (
    Bin,
    DroppedFigures,
    Figures,
    Share,
    SourceFigures,
    figures_of,
    tokens_per_byte,
)
from monolane.data._manifest import Half, Manifest, Source
from monolane.data._page import render_page
from monolane.data._prepare import prepare
from monolane.data._recipe import (
    CorpusRecipe,
    DecontaminationRecipe,
    DuplicatesRecipe,
    EvaluationSet,
    SourceRecipe,
    TokenizerRecipe,
    read_recipe,
)
from monolane.data._show import Piece, ShownRow, show_row
from monolane.data._sources import library_texts
from monolane.data._split import is_held_out
from monolane.data._stream import Place
from monolane.data._tokens import Part, TokenFiles
from monolane.data._vocabulary import train_vocabulary, write_vocabulary
from monolane.data._write import Encoded, write_corpus

__all__ = [
    "IGNORED",
    "NO_DOCUMENT",
    "Bin",
    "Blend",
    "Corpus",
    "CorpusRecipe",
    "DecontaminationRecipe",
    "DroppedFigures",
    "DuplicatesRecipe",
    "Encoded",
    "EvaluationSet",
    "Figures",
    "Half",
    "HeldOut",
    "HeldOutDocument",
    "Manifest",
    "Part",
    "Piece",
    "Place",
    "Rows",
    "Share",
    "ShownRow",
    "Source",
    "SourceFigures",
    "SourceRecipe",
    "TokenFiles",
    "TokenizerRecipe",
    "figures_of",
    "is_held_out",
    "library_texts",
    "prepare",
    "read_recipe",
    "render_page",
    "show_row",
    "tokens_per_byte",
    "train_vocabulary",
    "write_corpus",
    "write_vocabulary",
]
