"""What 'monolane bench' measured, drawn: speed of decode and of prefill, by length and dtype."""

from collections.abc import Sequence
from pathlib import Path

from monolane._results import Record
from monolane.errors import RequestError
from monolane.measure._load_plot import require_plot

_PANELS = (
    ("decode", "context", "tokens before those timed"),
    ("prefill", "tokens", "tokens of the prompt"),
)


def plot_bench(records: Sequence[Record], title: str, path: Path) -> None:
    """Write an SVG of records named "decode" and "prefill": medians, with the least and the most.

    The same records give the same bytes. RequestError where there are none; MissingExtraError
    without matplotlib.
    """
    require_plot()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    panels = [x for x in _PANELS if any(record["name"] == x[0] for record in records)]
    if not panels:
        raise RequestError("plot: expected records named 'decode' or 'prefill', got none")
    # Text stays text, with whatever sans-serif font the reader has; and no ids of chance.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "monolane", "font.size": 9}):
        figure = Figure(figsize=(3.6 * len(panels) + 0.4, 3.2), layout="constrained")
        figure.suptitle(title, fontsize=9)
        for axes, (name, length, label) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            of = [record for record in records if record["name"] == name]
            for dtype in dict.fromkeys(record["dtype"] for record in of):
                points = sorted(
                    (record for record in of if record["dtype"] == dtype), key=lambda x: x[length]
                )
                lengths = [record[length] for record in points]
                medians = [record["median"] for record in points]
                spread = [
                    [record["median"] - record["min"] for record in points],
                    [record["max"] - record["median"] for record in points],
                ]
                axes.errorbar(lengths, medians, spread, marker="o", capsize=3, label=dtype)
            axes.set_title(f"{name}: tokens/s", fontsize=9)
            axes.set_xlabel(label)
            axes.set_xlim(left=0)
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
        named = {
            name: line
            for axes in figure.axes
            for line, name in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend([*named.values()], [*named], loc="outside right upper", frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})
