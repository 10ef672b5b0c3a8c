"""``monolane trace``: where the time of a token goes, phase by phase and worker by worker."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from monolane.cli import _options as options

if TYPE_CHECKING:
    from monolane.measure import KindSummary, Trace


def trace(
    out: Annotated[Path, typer.Option("--out", "-o", help="Trace file to write (JSON).")],
    model: options.ModelAtRevision = "demo",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to trace.")] = 16,
    dtype: options.Dtype = "auto",
    context: Annotated[
        int, typer.Option(min=1, help="Tokens in the sequence before those traced.")
    ] = 128,
    workers: options.Workers = None,
) -> None:
    """Trace the decoding of some tokens on the CPU, for ui.perfetto.dev or chrome://tracing.

    The file has a track per worker, with each phase and each wait. The table on stdout sums them
    up per kind of phase: per token, and averaged over the workers.
    """
    from monolane.engine import find_model
    from monolane.measure import LoadedModel, summarise, take_trace

    loaded = LoadedModel(
        find_model(model), dtype, context=context + tokens, slots=1, workers=workers
    )
    taken = take_trace(loaded, context=context, tokens=tokens)
    out.write_text(json.dumps(taken.chrome()), encoding="utf-8")
    sys.stdout.write("\n".join(_table(taken, summarise(taken))) + "\n")
    sys.stderr.write(f"written to {out}: open it in ui.perfetto.dev\n")


def _table(trace: "Trace", rows: "list[KindSummary]") -> list[str]:
    lines = [
        f"{trace.passes} tokens on {trace.workers} workers, per token:",
        f"{'phase':8} {'us':>10} {'MB':>10} {'GB/s':>8} {'waiting us':>11} {'waiting':>8}",
    ]
    lines += [_row(row) for row in rows]
    busy = sum(row.busy_us for row in rows)
    waiting = sum(row.waiting_us for row in rows)
    moved = sum(row.bytes for row in rows)
    share = waiting / max(busy + waiting, 1e-9)
    rate = moved / max(busy, 1e-9) / 1e3
    return [*lines, _line("total", busy, moved, rate, waiting, share)]


def _row(row: "KindSummary") -> str:
    return _line(row.kind, row.busy_us, row.bytes, row.gb_per_s, row.waiting_us, row.waiting_share)


def _line(kind: str, busy: float, moved: float, rate: float, waiting: float, share: float) -> str:
    return f"{kind:8} {busy:10,.1f} {moved / 1e6:10,.3f} {rate:8.2f} {waiting:11,.1f} {share:8.1%}"
