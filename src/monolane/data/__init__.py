"""Data: from files to a prepared corpus, and from a corpus to the rows that training reads.

Reading needs nothing beside the base install, preparation ``pip install 'monolane[data]'``.
"""

from monolane.data._blend import IGNORED, NO_DOCUMENT, Blend, Rows
from monolane.data._corpus import Corpus, Encoded
from monolane.data._disk import disk_told
from monolane.data._figures import figures_of, render_page
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
from monolane.data._show import show_row
from monolane.data._sources import is_held_out, library_texts
from monolane.data._vocabulary import train_vocabulary, write_vocabulary
from monolane.data._write import write_corpus

__all__ = [
    "IGNORED",
    "NO_DOCUMENT",
    "Blend",
    "Corpus",
    "CorpusRecipe",
    "DecontaminationRecipe",
    "DuplicatesRecipe",
    "Encoded",
    "EvaluationSet",
    "Rows",
    "SourceRecipe",
    "TokenizerRecipe",
    "disk_told",
    "figures_of",
    "is_held_out",
    "library_texts",
    "prepare",
    "read_recipe",
    "render_page",
    "show_row",
    "train_vocabulary",
    "write_corpus",
    "write_vocabulary",
]
