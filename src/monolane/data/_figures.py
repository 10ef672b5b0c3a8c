"""What a corpus holds, in the numbers that the terminal and the report page both show.

The page is one HTML file that needs nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined

from monolane._version import __version__
from monolane.data._corpus import Corpus
from monolane.data._filter_stats import Dropped, Summary
from monolane.data._interleave import Turns
from monolane.data._manifest import Half, Source

_HEIGHT = 60  # of a histogram's tallest bar, in SVG units; a bar is 22 wide on a pitch of 28
_PITCH = 28


@dataclass(frozen=True)
class Bin:
    """Documents of ``low`` to ``high`` tokens."""

    low: int
    high: int
    documents: int


@dataclass
class DroppedFigures(Dropped):
    """What one filter dropped of a source; ``bytes`` is 0 where the text could not be read."""

    filter: str = ""
    share: float = 0.0  # of the documents read


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


def render_page(corpus: Corpus) -> str:
    """Return the page; texts of the corpus are escaped, for they may be anything."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters.update(count="{:,}".format, size=human_size, percent=_percent)
    template = resources.files("monolane.data").joinpath("templates/report.html").read_text("utf-8")
    return environment.from_string(template).render(
        corpus=corpus, figures=figures_of(corpus), bars=_bars, version=__version__
    )


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
        known = {**summary.get("dropped", {}).get(name, {}), "documents": documents}
        share = documents / source.read if source.read else 0.0
        dropped.append(DroppedFigures(**known, filter=name, share=share))
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


def _bars(bins: tuple[Bin, ...]) -> list[dict[str, Any]]:
    """Return the rectangles of a histogram, from left to right."""
    tallest = max(one.documents for one in bins)
    return [
        {
            "x": place * _PITCH,
            "y": _HEIGHT - round(_HEIGHT * one.documents / tallest, 1),
            "height": round(_HEIGHT * one.documents / tallest, 1),
            "label": short_count(one.low),
            "title": f"{one.low:,} to {one.high:,} tokens: {one.documents:,} documents",
        }
        for place, one in enumerate(bins)
    ]


def short_count(count: float) -> str:
    """Return a count in at most four signs or so: 1.23M, as the field writes tokens."""
    for unit in ("", "k", "M", "B"):
        if count < 999.5:
            return f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g}T"


def _percent(value: float) -> str:
    return f"{100 * float(value):.3g} %"
