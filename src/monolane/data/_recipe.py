"""The recipe of a corpus: sources, filters, duplicates, evaluation sets, tokenizer, mixtures.

A frozen value read from TOML; the corpus carries it, so that nobody needs to ask what went in.
"""

import re
from dataclasses import field, replace
from pathlib import Path
from typing import Literal

from pydantic import PositiveInt

from monolane._toml import Share, config, load_table, read_table
from monolane.data._interleave import exact_shares
from monolane.errors import ConfigError

Kind = Literal["text", "code", "jsonl", "parquet", "python-library"]

_PATTERNS: dict[str, tuple[str, ...]] = {
    "text": ("**/*.txt", "**/*.md", "**/*.rst"),
    "code": ("**/*.py",),
    "jsonl": ("**/*.jsonl", "**/*.jsonl.gz"),
    "parquet": ("**/*.parquet",),
    "python-library": ("**/*.py",),
}
# What a name may hold: it becomes a folder, and a key in TOML.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@config
class SourceRecipe:
    """Where the documents of one source lie, and which of them are kept."""

    name: str
    kind: Kind
    path: str = ""  # file or folder; python-library: empty for the running Python's
    pattern: tuple[str, ...] = ()  # below a folder; empty: those that the kind suggests
    field: str = "text"  # of jsonl and parquet: where the text stands
    min_characters: int = 1
    max_characters: int | None = None
    max_line: int | None = None  # characters; minified code and data have longer ones
    repetition: bool = False  # Gopher's rules, made for prose: dull code breaks them too
    script: str | None = None  # of the letters, e.g. "Latin" or "Greek"; see also script_share
    script_share: float = 0.9

    @property
    def patterns(self) -> tuple[str, ...]:
        """Files below a folder that belong to the source."""
        return self.pattern or _PATTERNS[self.kind]


@config
class TokenizerRecipe:
    """A tokenizer that is there (``path``), or one to be trained (``vocabulary``)."""

    path: str = ""  # tokenizer.json or its folder
    bos: str | None = None  # where no tokenizer_config.json says them
    eos: str | None = None
    vocabulary: int = 0  # tokens of a byte-level BPE to train on what is kept
    sample_bytes: int = 1_000_000_000  # of text to train it on, at most, from all shards alike


@config
class DuplicatesRecipe:
    """Which copies are dropped; of copies, the one in the source that comes first is kept."""

    exact: bool = True
    near: bool = False
    priority: tuple[str, ...] = ()  # names of sources, first keeps; the rest in their order
    # A pair of similarity s (of sets of word 5-grams) is found with 1 - (1 - s^hashes)^buckets:
    # 0.5: 5 %, 0.7: 56 %, 0.8: 92 %, 0.9: 99.96 %.
    ngram: PositiveInt = 5  # words
    buckets: PositiveInt = 14
    hashes: PositiveInt = 8  # of a bucket


@config
class EvaluationSet:
    """A set that the model will be judged on: JSONL, one task a line."""

    name: str
    path: str
    fields: tuple[str, ...] = ()  # joined; empty: all strings of a line


@config
class DecontaminationRecipe:
    """Documents that share ``ngram`` words in a row with a set are dropped."""

    ngram: PositiveInt = 13
    sets: tuple[EvaluationSet, ...] = ()


@config
class CorpusRecipe:
    """Everything that decides a corpus; paths are below the recipe's folder, or absolute.

    ConfigError: names that clash, a stage with a source that is not there, numbers out of range.
    """

    sources: tuple[SourceRecipe, ...]
    tokenizer: TokenizerRecipe
    seed: int = 0  # of the order of documents
    held_out: Share = 0.01  # share of the documents, chosen by the hash of their content
    duplicates: DuplicatesRecipe = field(default_factory=DuplicatesRecipe)
    decontamination: DecontaminationRecipe = field(default_factory=DecontaminationRecipe)
    stages: dict[str, dict[str, float]] = field(default_factory=dict)  # stage -> source -> weight

    def __post_init__(self) -> None:
        self._check_sources()
        self._check_tokenizer()

    def source(self, name: str) -> SourceRecipe:
        """Return the source of that name, which must be there."""
        return next(source for source in self.sources if source.name == name)

    def by_priority(self) -> tuple[SourceRecipe, ...]:
        """Return the sources, those first whose copies are kept."""
        first = [self.source(name) for name in self.duplicates.priority]
        return (*first, *(source for source in self.sources if source not in first))

    def _check_sources(self) -> None:
        names = [source.name for source in self.sources]
        if not names:
            raise ConfigError("sources: expected at least one, got none; add a [[sources]] table")
        sets = [given.name for given in self.decontamination.sets]
        for name in (*names, *sets):
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    "sources and sets: expected a name of letters, digits, '-', '_' and '.', "
                    f"got {name!r}"
                )
            if max(names.count(name), sets.count(name)) > 1:
                raise ConfigError(f"sources and sets: expected distinct names, got {name!r} twice")
        if reserved := {"work"}.intersection(names):
            raise ConfigError(f"sources: expected another name than {reserved.pop()!r}")
        for where, given in (
            ("duplicates.priority", list(self.duplicates.priority)),
            *((f"stages.{stage}", list(weights)) for stage, weights in self.stages.items()),
        ):
            if unknown := [name for name in given if name not in names]:
                raise ConfigError(
                    f"{where}: expected names of sources ({', '.join(names)}), got {unknown[0]!r}"
                )
        for stage, weights in self.stages.items():
            try:
                exact_shares(weights)  # else it is found out when training begins
            except ConfigError as error:
                raise ConfigError(f"stages.{stage}: {error}") from None
        for source in self.sources:
            if not source.path and source.kind != "python-library":
                raise ConfigError(f"sources.{source.name}: expected a path, found none; add it")

    def _check_tokenizer(self) -> None:
        tokenizer = self.tokenizer
        if bool(tokenizer.path) == bool(tokenizer.vocabulary):
            raise ConfigError(
                "tokenizer: expected either path, of one that is there, or vocabulary, of one to "
                f"train, got path {tokenizer.path!r} and vocabulary {tokenizer.vocabulary}"
            )
        if tokenizer.vocabulary and not 261 <= tokenizer.vocabulary <= 1 << 20:
            raise ConfigError(
                "tokenizer.vocabulary: expected 261 (256 bytes and 5 control tokens) to "
                f"{1 << 20}, got {tokenizer.vocabulary}"
            )


def read_recipe(path: Path) -> CorpusRecipe:
    """Read a recipe; ConfigError says which key, what was expected and what was found."""
    table, origin = load_table(path)
    return _anchored(read_table(CorpusRecipe, table, origin), path.absolute().parent)


def _anchored(recipe: CorpusRecipe, folder: Path) -> CorpusRecipe:
    """Return the recipe with its paths made absolute."""

    def at(path: str) -> str:
        return str(folder / Path(path).expanduser()) if path else ""

    sets = recipe.decontamination.sets
    return replace(
        recipe,
        sources=tuple(replace(source, path=at(source.path)) for source in recipe.sources),
        tokenizer=replace(recipe.tokenizer, path=at(recipe.tokenizer.path)),
        decontamination=replace(
            recipe.decontamination, sets=tuple(replace(s, path=at(s.path)) for s in sets)
        ),
    )
