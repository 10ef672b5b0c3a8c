"""``monolane trace``: where the time of a token goes, phase by phase and worker by worker."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from monolane._loading import Loading
from monolane.cli import _options as options
from monolane.cli._groups import grouped
from monolane.cli._output import check_output, write_output

if TYPE_CHECKING:
    from monolane.plan import KindSummary, Trace


_BAR = 40  # characters of the whole time


@grouped("trace", after={"context": "cache_dtype"})
def trace(
    *,
    out: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="File to write: a page where it ends in .html, a picture where in .svg, else a "
            "trace for ui.perfetto.dev (JSON).",
        ),
    ],
    model: options.Model = "demo",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to trace.")] = 16,
    loading: Loading,
    context: Annotated[
        int, typer.Option("--before", min=1, help="Tokens in the sequence before those traced.")
    ] = 128,
) -> None:
    """Trace some tokens' decoding, phase by phase (CPU).

    Page and picture show a token, with a row per worker; a trace has all tokens. Each has every
    phase and every wait. The table on stdout sums them up per kind of phase: per token, averaged
    over the workers, with a bar of its part of the time (waiting: pale).
    """
    from monolane._progress import still
    from monolane.measure import LoadedModel, take_trace, trace_page, trace_svg
    from monolane.plan import summarise
    from monolane.sources import find_model

    check_output(out)
    with still(f"tracing {model}"):
        loaded = LoadedModel(
            find_model(model),
            context=context + tokens,
            slots=1,
            **loading.given(),
        )
        taken = take_trace(loaded, context=context, tokens=tokens)
    drawn = {".html": trace_page, ".svg": trace_svg}.get(out.suffix)
    title = f"{model} on {taken.workers} worker{'s' * (taken.workers > 1)}"
    write_output(out, drawn(taken, title) if drawn else json.dumps(taken.chrome()))
    sys.stdout.write("\n".join(_table(taken, summarise(taken))) + "\n")
    sys.stderr.write(f"written to {out}{'' if drawn else ': open it in ui.perfetto.dev'}\n")


def _table(trace: "Trace", rows: "list[KindSummary]") -> list[str]:
    from monolane.plan import KindSummary

    wide = max(8, *(len(row.kind) for row in rows))
    lines = [
        f"{trace.passes} tokens on {trace.workers} workers, per token:",
        f"{'phase':{wide}} {'us':>10} {'MB':>10} {'GB/s':>8} {'waiting us':>11} {'waiting':>8}",
    ]
    busy = sum(row.busy_us for row in rows)
    waiting = sum(row.waiting_us for row in rows)
    moved = sum(row.bytes for row in rows)
    total = KindSummary("total", busy, waiting, moved, moved / max(busy, 1e-9) / 1e3)
    whole = max(busy + waiting, 1e-9)
    bars = [_bar(row.busy_us / whole, row.waiting_us / whole) for row in rows]
    shown = [f"{_line(row, wide)}  {bar}" for row, bar in zip(rows, bars, strict=True)]
    return [*lines, *shown, _line(total, wide)]


def _bar(busy: float, waiting: float) -> str:
    """Return a bar of two shares of the whole time; what a terminal cannot say is escaped."""
    work = round(busy * _BAR)
    return "█" * work + "░" * (round((busy + waiting) * _BAR) - work)


def _line(row: "KindSummary", wide: int) -> str:
    return (
        f"{row.kind:{wide}} {row.busy_us:10,.1f} {row.bytes / 1e6:10,.3f} {row.gb_per_s:8.2f} "
        f"{row.waiting_us:11,.1f} {row.waiting_share:8.1%}"
    )
