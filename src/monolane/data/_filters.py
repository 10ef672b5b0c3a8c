"""Filters of single documents: each is asked in turn, and the first that says no is named.

A filter returns why a text goes, or None. Those that count words are datatrove's, with words that
are split by a regular expression: its own splitters load models of 100 MB and more.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.decont.n_grams import NGramsDecontConfig, NGramsDecontFilter
from datatrove.pipeline.filters import GopherRepetitionFilter
from datatrove.utils.hashing import HashConfig
from datatrove.utils.text import TextNormConfig, ngrams, simplify_text
from datatrove.utils.word_tokenizers import WordTokenizer

from monolane.data._recipe import SourceRecipe
from monolane.data._sources import is_generated

Filter = Callable[[str], str | None]

# One sign of Chinese, Japanese or Thai is a word here: they put no spaces between words.
_ALONE = r"\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff"
_WORD = re.compile(rf"[{_ALONE}]|[^\W{_ALONE}]+")


class Words(WordTokenizer):
    """Words of any language, near enough for counting n-grams."""

    def word_tokenize(self, text: str) -> list[str]:
        """Return the words."""
        return _WORD.findall(text)

    def sent_tokenize(self, text: str) -> list[str]:
        """Not needed here."""
        raise NotImplementedError

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """Not needed here."""
        raise NotImplementedError


WORDS = Words()
# The other choice, xxhash, takes strings up to its version 3 only, and that is no version to pin.
HASHES = HashConfig(hash_fc="sha1")


def decontamination_config(ngram: int) -> Any:
    """Return datatrove's settings: words without case and punctuation, but numbers as they are.

    Its default makes every number "0", and any table of numbers is then a copy of any other.
    """
    norm = TextNormConfig(norm_numbers=False)
    return NGramsDecontConfig(n_grams=ngram, norm_config=norm, hash_config=HASHES)


def telling_ngrams(text: str, ngram: int) -> Iterator[str]:
    """Yield the n-grams of an evaluation task that tell: more than half of them distinct words.

    Every other test of code holds ``1 2 3 4 ...``, and has not seen HumanEval for that.
    """
    words = WORDS.word_tokenize(simplify_text(text, decontamination_config(ngram).norm_config))
    for found in ngrams(words, ngram):
        if 2 * len({word for word in found if not word.isdigit()}) > ngram:
            yield " ".join(found)


def filters_of(source: SourceRecipe, evaluation: Path | None, ngram: int) -> dict[str, Filter]:
    """Return a source's filters by name, in the order in which they are asked.

    ``evaluation`` is a folder with the hashes of the evaluation sets, where there are any.
    """
    filters: dict[str, Filter] = {"length": _length(source)}
    if source.kind in ("code", "python-library"):
        filters["generated"] = _generated
    if source.script is not None:
        filters["script"] = _script(source.script, source.script_share)
    if source.repetition:
        filters["repetition"] = _asked(GopherRepetitionFilter(language=WORDS))
    if evaluation is not None:
        config = decontamination_config(ngram)
        filters["contaminated"] = _asked(
            NGramsDecontFilter(str(evaluation), config, language=WORDS)
        )
    return filters


def _length(source: SourceRecipe) -> Filter:
    def check(text: str) -> str | None:
        if len(text.strip()) < source.min_characters:
            return "too short"
        if source.max_characters is not None and len(text) > source.max_characters:
            return "too long"
        longest = max(map(len, text.splitlines()), default=0)
        if source.max_line is not None and longest > source.max_line:
            return "a line too long"
        return None

    return check


def _generated(text: str) -> str | None:
    return "says that it is generated" if is_generated(text) else None


def _script(script: str, least: float) -> Filter:
    """Keep texts whose letters are of a script: what can be said of language without a model."""

    def check(text: str) -> str | None:
        letters = [character for character in text if character.isalpha()]
        own = sum(_is_of(letter, script.upper()) for letter in letters)
        if own < least * len(letters):
            return f"{own / len(letters):.0%} {script}"
        return None

    return check


@lru_cache(1 << 16)
def _is_of(letter: str, script: str) -> bool:
    return unicodedata.name(letter, "").startswith(script)


def _asked(step: "GopherRepetitionFilter | NGramsDecontFilter") -> Filter:
    def check(text: str) -> str | None:
        document = Document(text=text, id="")
        answer = step.filter(document)
        if answer is True:
            return None
        metadata = document.metadata
        if "contaminated_task" in metadata:
            return f"{metadata['contaminated_task']}: {metadata['contaminated_ngram']}"
        return str(answer[1])

    return check
