"""The report page: what went into a corpus, as one HTML file that needs nothing else."""

from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined

from monolane._version import __version__
from monolane.data._corpus import Corpus
from monolane.data._figures import Bin, Figures, figures_of, human_size, tokens_per_byte

_HEIGHT = 60  # of a histogram's tallest bar, in SVG units; a bar is 22 wide on a pitch of 28
_PITCH = 28


def render_page(corpus: Corpus) -> str:
    """Return the page; texts of the corpus are escaped, for they may be anything."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters.update(count="{:,}".format, size=human_size, percent=_percent)
    template = resources.files("monolane.data").joinpath("templates/report.html").read_text("utf-8")
    figures = figures_of(corpus)
    return environment.from_string(template).render(
        corpus=corpus,
        figures=figures,
        parts=_parts(figures),
        bars=_bars,
        tokens_per_byte=tokens_per_byte,
        version=__version__,
    )


def _parts(figures: Figures) -> dict[str, float]:
    """Return each source's share of the tokens to train on."""
    total = max(1, figures.tokens)
    return {source.name: source.train.tokens / total for source in figures.sources}


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
