"""What requests get as load grows, drawn: speed of one, speed of all, wait for the first token."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from monolane._results import Record
from monolane.errors import MissingExtraError, RequestError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INCHES = (11.0, 3.6)


def require_plot() -> None:
    """Raise MissingExtraError if plots cannot be made: better before a load than after it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtraError("a plot", "plot") from None


def plot_load(records: Sequence[Record], path: Path) -> None:
    """Write an SVG of records named "serve", a line for each label and length of prompt.

    The same records give the same bytes. RequestError where none has figures; MissingExtraError
    without matplotlib.
    """
    require_plot()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    series = _series(records)
    if not series:
        raise RequestError("plot: expected records named 'serve' with figures, got none")
    rates = any(r["clients"] is None for points in series.values() for r in points)
    # Text stays text, with whatever sans-serif font the reader has; and no ids of chance.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "monolane", "font.size": 9}):
        figure = Figure(figsize=_INCHES, layout="constrained")
        speed, total, first = figure.subplots(1, 3)
        for name, points in series.items():
            _draw(name, points, speed, total, first)
        load = "requests/s" if rates else "concurrent requests"
        _finish(speed, load, "one request: tokens/s, median", len(series))
        _finish(total, load, "all requests: tokens/s", 1)
        _finish(first, load, "first token: ms (p50; p99 dashed)", 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _series(records: Sequence[Record]) -> dict[str, list[Record]]:
    drawn = [r for r in records if r["name"] == "serve" and r.get("median") is not None]
    lengths = {r.get("prompt_wanted") for r in drawn}
    series: dict[str, list[Record]] = {}
    for record in drawn:
        name = str(record["label"])
        if len(lengths) > 1:
            name += f", prompt of {record['prompt_wanted']:,}"
        series.setdefault(name, []).append(record)
    return {name: sorted(points, key=_load) for name, points in series.items()}


def _load(record: Record) -> float:
    return float(record["clients"] or record["rate"])


def _draw(name: str, points: list[Record], speed: "Axes", total: "Axes", first: "Axes") -> None:
    loads = [_load(record) for record in points]
    (line,) = speed.plot(loads, [r["median"] for r in points], marker="o", label=name)
    color = line.get_color()
    total.plot(loads, [r["total_tokens_per_s"] for r in points], marker="o", color=color)
    first.plot(loads, [r["first_ms"]["p50"] for r in points], marker="o", color=color)
    first.plot(loads, [r["first_ms"]["p99"] for r in points], linestyle="--", color=color)


def _finish(axes: "Axes", load: str, title: str, names: int) -> None:
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(load)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if names > 1:
        axes.legend(frameon=False)
