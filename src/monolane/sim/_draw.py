"""Pictures of forecasts: a pass as a timeline, sweeps as curves. Equal forecasts, equal bytes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from monolane.errors import MissingExtraError
from monolane.plan import PhaseKind
from monolane.sim._forecast import Forecast
from monolane.sim._spelled import spelled
from monolane.sim._sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = {
    PhaseKind.QKV: "#3b6ea5",
    PhaseKind.ATTEND: "#a27a2c",
    PhaseKind.OUT: "#6a9bd1",
    PhaseKind.GATE_UP: "#5a8a45",
    PhaseKind.DOWN: "#9cc48a",
    PhaseKind.ROUTE: "#2f6b5a",
    PhaseKind.EXPERT_GATE_UP: "#5a8a45",
    PhaseKind.EXPERT_DOWN: "#9cc48a",
    PhaseKind.HEAD: "#7d5a9b",
    PhaseKind.CHOOSE: "#b5524a",
}
_LAYERS = 3  # of a pass, from its middle: more cannot be read
_WAIT, _CHAIN, _REST = "#f0c2bd", "#d5d9dd", "#8a949c"


def draw_timeline(made: Forecast, path: Path, model: str) -> None:
    """Write three layers of a pass as SVG, a row for each group of workers.

    A row has waits, chains and products of one worker of the group. MissingExtraError without
    matplotlib.
    """
    low, high = made.interval
    title = (
        f"{model} on {made.machine.name}: {spelled(made.speed)} tokens/s "
        f"({spelled(low)} to {spelled(high)})\n{made.machine.standing}"
    )
    with _axes((11.0, 1.6 + 0.32 * made.plan.groups.count), path, title) as axes:
        _draw_rows(axes, made)
        axes.set_xlabel(f"us, {_LAYERS} layers from the middle of the pass")
        axes.set_ylabel("group")
        axes.invert_yaxis()
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _draw_rows(axes: "Axes", made: Forecast) -> None:
    groups = made.plan.groups
    bars: dict[tuple[str, str], dict[int, list[tuple[float, float]]]] = {}
    middle = made.plan.config.num_layers // 2
    steps = [s for s in made.run.steps if abs(s.phase.layer - middle) <= _LAYERS // 2]
    start = min(float(step.arrived.min()) for step in steps)
    for step in steps:
        times = [(t - start) * 1e6 for t in (step.arrived, step.begun, step.multiplied, step.ended)]
        kind = step.phase.kind
        looks = (("wait", _WAIT), ("chain", _CHAIN), (kind.name, _COLORS.get(kind, _REST)))
        for look, begun, ended in zip(looks, times, times[1:], strict=False):
            for group in range(groups.count):
                begin, end = (float(t[groups.workers_of(group)[0]]) for t in (begun, ended))
                if end > begin:
                    bars.setdefault(look, {}).setdefault(group, []).append((begin, end - begin))
    for (label, color), rows in bars.items():
        for group, spans in rows.items():
            named = label if group == min(rows) else None
            axes.broken_barh(spans, (group - 0.4, 0.8), color=color, linewidth=0, label=named)


def draw_sweep(swept: Sweep, path: Path) -> None:
    """Write curves with their intervals as SVG; MissingExtraError without matplotlib."""
    with _axes((6.4, 3.8), path, swept.title.replace(" · ", "\n", 1)) as axes:
        for rule, points in swept.lines_by_rule.items():
            values = [p.value for p in points]
            (line,) = axes.plot(values, [p.speed for p in points], marker="o", label=rule or None)
            axes.fill_between(
                values,
                [p.low for p in points],
                [p.high for p in points],
                color=line.get_color(),
                alpha=0.08,
            )
        axes.set_xlabel(swept.label)
        axes.set_ylabel("tokens/s")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        if len(swept.lines_by_rule) > 1:
            axes.legend(title="reduce", frameon=False)


@contextmanager
def _axes(inches: tuple[float, float], path: Path, title: str) -> "Iterator[Axes]":
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("a picture", "plot") from None
    # Text stays text, with whatever sans-serif font the reader has; and no ids of chance.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "monolane", "font.size": 9}):
        figure = Figure(figsize=inches, layout="constrained")
        axes = figure.subplots()
        axes.set_title(title, fontsize=9)
        yield axes
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})
