"""Runs of training, drawn from their journals: loss, held-out text, gradients, speed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolane.errors import CheckpointError, RequestError
from monolane.train._journal import JOURNAL, read_journal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INCHES = (9.0, 5.6)
_SMOOTHED = 50  # a step counts half in the smooth line after this part of the run
_PARTS = 150  # of a run's steps, of each of which a picture shows the least and the most
_HELD_OUT = "bits_per_byte"
# What a restart or a rollback does to a run, which a reader of its curves wants to see.
_MARKED = {"resume": ":", "stage": "-.", "spike": "--", "rollback": "--"}
_FIELDS = ("loss", "norm", "tokens", "tokens_per_s", "seconds")  # of a step, that are drawn
# Field of a step, title, and whether its scale is logarithmic.
_PANELS = (
    ("loss", "loss: nats per token", False),
    (_HELD_OUT, "held-out text: bits per byte", False),
    ("norm", "norm of the gradients", True),
    ("tokens_per_s", "tokens/s", False),
)


@dataclass(frozen=True, slots=True)
class Curves:
    """What a run's journal says, without the steps that it did again."""

    steps: dict[int, dict[str, Any]] = field(default_factory=dict)  # fields of a StepRecord
    held_out: dict[int, float] = field(default_factory=dict)  # bits per byte, of all sources
    events: list[tuple[int, str]] = field(default_factory=list)  # (step, kind)


def read_curves(folder: Path) -> Curves:
    """Read a run's journal; RequestError where there is none, or no step in it.

    CheckpointError where a line is none of a journal's.
    """
    curves = Curves()
    last = 0
    for line in read_journal(folder):
        step = line["step"]
        if "loss" in line:
            if not all(isinstance(line.get(name), int | float) for name in _FIELDS):
                raise _fault(folder, line)
            for again in range(step, last + 1):  # begun anew from an earlier checkpoint
                curves.steps.pop(again, None)
                curves.held_out.pop(again, None)
            curves.steps[step] = line
            last = step
        elif isinstance(scores := line.get("validation"), dict):
            if (found := scores.get(_HELD_OUT)) is not None:
                curves.held_out[step] = found
        elif isinstance(line.get("event"), str):
            curves.events.append((step, line["event"]))
        else:
            raise _fault(folder, line)
    if not curves.steps:
        raise RequestError(
            f"{folder}: expected the folder of a run, whose {JOURNAL} has steps, got none; name "
            "the OUTPUT of 'monolane train' or 'launch', or the OUTPUT.run of 'train demo' or 'sft'"
        )
    return curves


def _fault(folder: Path, line: Mapping[str, Any]) -> CheckpointError:
    return CheckpointError(
        f"{folder / JOURNAL}: expected a step with {', '.join(_FIELDS)}, a validation or an event, "
        f"got {dict(line)!s:.200}"
    )


def plot_runs(runs: Mapping[str, Curves], by: str) -> str:
    """Return an SVG of runs by name: a pale line of each step and a smooth one over it.

    ``by``: "step", "tokens" or "seconds", which is what lies on the horizontal axes. Events that
    change a run's course are upright lines. The same journals give the same bytes. Needs
    matplotlib.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    shown = [
        panel
        for panel in _PANELS
        if panel[0] != _HELD_OUT or any(curves.held_out for curves in runs.values())
    ]
    # Text stays text, with whatever sans-serif font the reader has; and no ids of chance.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "monolane", "font.size": 9}):
        figure = Figure(figsize=_INCHES, layout="constrained")
        for axes, (name, title, logarithmic) in zip(
            figure.subplots(2, 2).flat, shown, strict=False
        ):
            for color, (run, curves) in enumerate(runs.items()):
                _draw(axes, name, curves, by, f"C{color}", _label(run))
            axes.set_title(title, fontsize=9)
            axes.set_xlabel({"step": "steps", "tokens": "tokens", "seconds": "seconds"}[by])
            axes.set_xlim(left=0)
            if logarithmic:
                axes.set_yscale("log")
            if name == "tokens_per_s":
                axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
        for axes in figure.axes[len(shown) :]:
            axes.set_axis_off()
        if len(runs) > 1:
            lines, names = figure.axes[0].get_legend_handles_labels()
            figure.legend(lines, names, loc="outside lower center", ncols=3, frameon=False)
        drawn = StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()


def _draw(axes: "Axes", name: str, curves: Curves, by: str, color: str, run: str) -> None:
    places = _places(curves, by)
    if name == _HELD_OUT:
        points = {step: found for step, found in curves.held_out.items() if step in places}
        at = [places[step] for step in points]
        axes.plot(at, list(points.values()), marker="o", markersize=3, color=color, label=run)
        return
    at = [places[step] for step in curves.steps]
    values = [record[name] for record in curves.steps.values()]
    extremes = _extremes(values)
    far = ([at[i] for i in extremes], [values[i] for i in extremes])
    axes.plot(*far, color=color, alpha=0.3, linewidth=0.6)
    smooth = [*zip(at, _smooth(values), strict=True)]
    few = [*smooth[:: -(-len(smooth) // _PARTS)], smooth[-1]]
    axes.plot(*zip(*few, strict=True), color=color, linewidth=1.4, label=run)
    for step, kind in curves.events:
        if kind in _MARKED and step in places:
            axes.axvline(places[step], color=color, linestyle=_MARKED[kind], linewidth=0.7)


def _label(name: str) -> str:
    """Return a name as matplotlib shows it: "$" begins a formula, "_" what is not shown."""
    return f"\N{ZERO WIDTH SPACE}{name.replace('$', chr(92) + '$')}"


def _places(curves: Curves, by: str) -> dict[int, float]:
    """Return where each step lies on the horizontal axis."""
    places: dict[int, float] = {}
    seconds = 0.0
    for step, record in curves.steps.items():
        seconds += record["seconds"]
        places[step] = {"step": step, "tokens": record["tokens"], "seconds": seconds}[by]
    return places


def _extremes(values: list[float]) -> list[int]:
    """Return where the least and the most of each part of a run are: all of a short one."""
    size = -(-len(values) // _PARTS)
    found: set[int] = set()
    for begin in range(0, len(values), size):
        part = range(begin, min(begin + size, len(values)))
        found |= {min(part, key=values.__getitem__), max(part, key=values.__getitem__)}
    return sorted(found)


def _smooth(values: list[float]) -> list[float]:
    """Return a moving average whose weights fall off by half over a fiftieth of the run."""
    keep = 0.5 ** (_SMOOTHED / max(_SMOOTHED, len(values)))
    smooth: list[float] = []
    mean = weight = 0.0
    for value in values:
        if math.isfinite(value):
            mean, weight = keep * mean + (1 - keep) * value, keep * weight + 1 - keep
        smooth.append(mean / weight if weight else math.nan)
    return smooth
