"""What a corpus holds, in the numbers that the terminal and the report page both show."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from monolane.data._corpus import Corpus
from monolane.data._manifest import Half, Source
from monolane.data._tally import Summary
from monolane.data._turns import Turns


@dataclass(frozen=True)
class Bin:
    """Documents of ``low`` to ``high`` tokens."""

    low: int
    high: int
    documents: int


@dataclass(frozen=True)
class DroppedFigures:
    """What one filter dropped of a source; ``bytes`` is 0 where the text could not be read."""

    filter: str
    documents: int
    share: float  # of the documents read
    bytes: int
    reasons: Mapping[str, int]
    examples: tuple[Mapping[str, str], ...]  # name, why, text


@dataclass(frozen=True)
class SourceFigures:
    """One source; ``lengths`` are those of its training documents, empty where nobody counted."""

    name: str
    kind: str
    read: int
    train: Half
    held_out: Half
    dropped: tuple[DroppedFigures, ...]
    lengths: tuple[Bin, ...]

    @property
    def kept(self) -> int:
        """Documents in both halves."""
        return self.train.documents + self.held_out.documents


@dataclass(frozen=True)
class Share:
    """One source of a stage; after ``repeats`` tokens of the stage its text comes again."""

    source: str
    share: Fraction
    repeats: int


@dataclass(frozen=True)
class Figures:
    """A whole corpus; ``stages`` by name."""

    sources: tuple[SourceFigures, ...]
    stages: Mapping[str, tuple[Share, ...]]
    evaluation: tuple[Mapping[str, Any], ...]  # name, tasks, short, ngrams

    @property
    def tokens(self) -> int:
        """Tokens to train on, of all sources."""
        return sum(source.train.tokens for source in self.sources)


def figures_of(corpus: Corpus) -> Figures:
    """Gather the figures; reads the manifest and the report's data, no token files."""
    summary = Summary.read(corpus.folder)
    kinds = {s["name"]: s["kind"] for s in corpus.manifest.recipe.get("sources", ())}
    return Figures(
        tuple(
            _source(source, kinds.get(source.name, "ids"), summary.sources.get(source.name, {}))
            for source in corpus.manifest.sources
        ),
        {name: _shares(corpus, weights) for name, weights in corpus.manifest.stages.items()},
        tuple(summary.evaluation),
    )


def tokens_per_byte(half: Half) -> float:
    """Return how many tokens a byte takes; 0 for an empty half."""
    return half.tokens / half.bytes if half.bytes else 0.0


def human_size(count: float) -> str:
    """Return bytes as people say them: 1.23 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _source(source: Source, kind: str, summary: Mapping[str, Any]) -> SourceFigures:
    dropped = []
    for name, documents in source.dropped.items():
        known = summary.get("dropped", {}).get(name, {})
        dropped.append(
            DroppedFigures(
                name,
                documents,
                documents / source.read if source.read else 0.0,
                known.get("bytes", 0),
                known.get("reasons", {}),
                tuple(known.get("examples", ())),
            )
        )
    lengths = _bins(summary.get("lengths", {}).get("train", []))
    return SourceFigures(
        source.name, kind, source.read, source.train, source.held_out, tuple(dropped), lengths
    )


def _bins(counts: list[int]) -> tuple[Bin, ...]:
    """Return the bins from the first to the last that holds a document."""
    filled = [place for place, count in enumerate(counts) if count]
    if not filled:
        return ()
    places = range(filled[0], filled[-1] + 1)
    return tuple(Bin(2**place, 2 ** (place + 1) - 1, counts[place]) for place in places)


def _shares(corpus: Corpus, weights: Mapping[str, float]) -> tuple[Share, ...]:
    return tuple(
        Share(name, share, int(corpus.sources[name].train.tokens / share))
        for name, share in Turns(weights).shares.items()
    )
