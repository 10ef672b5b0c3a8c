"""A trace as a picture: one token's pass, a row for each worker; alone, or in a page of HTML.

Written as SVG by hand: a pass of a large model has thousands of bars, and nothing else. The same
trace gives the same bytes.
"""

from collections.abc import Iterator
from html import escape
from itertools import groupby

from monolane.plan import KindSummary, Slice, Trace, summarise

_COLOURS = ("#3b6ea5", "#a27a2c", "#5a8a45", "#7d5a9b", "#b5524a", "#2f7f86", "#8c6d46", "#6a6f7a")
_WAIT = "#f0c2bd"
_LEFT, _WIDTH, _ROW, _TOP = 74, 900, 20, 46  # px

_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 1020px; margin: 2em auto; }}
svg {{ width: 100%; height: auto; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .15em .8em; text-align: right; font-variant-numeric: tabular-nums; }}
th:first-child, td:first-child {{ text-align: left; }}
tr {{ border-bottom: 1px solid #ddd; }}
</style>
<h1>{title}</h1>
<p>One token, and below it all {passes} that were traced: per token, averaged over {workers}
workers.
A bar's tooltip names its phase. What is pale is waiting.</p>
{svg}
<table>
<tr><th>phase</th><th>µs</th><th>MB</th><th>GB/s</th><th>waiting µs</th><th>waiting</th></tr>
{rows}
</table>
"""


def trace_page(trace: Trace, title: str) -> str:
    """Return a page of HTML that needs nothing beside it."""
    rows = "\n".join(map(_row, summarise(trace)))
    told = {"title": escape(title), "passes": trace.passes, "workers": trace.workers}
    return _PAGE.format(svg=trace_svg(trace, title), rows=rows, **told)


def trace_svg(trace: Trace, title: str) -> str:
    """Return the middle pass of a trace as SVG: ``bar`` after bar, a row for each worker."""
    by_worker = list(_middle(trace))
    slices = [piece for pieces in by_worker for piece in pieces]
    kinds = [row.kind for row in summarise(trace)]
    colours = {kind: _COLOURS[i % len(_COLOURS)] for i, kind in enumerate(kinds)}
    start = min(piece.arrived for piece in slices)
    whole = max(piece.ended for piece in slices) - start
    scale = _WIDTH / max(1, whole)  # px a ns
    height = _TOP + _ROW * len(by_worker) + 30
    view = f'viewBox="0 0 {_LEFT + _WIDTH + 10} {height}" font-family="sans-serif" font-size="11"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {view} role="img">',
        f"<title>{escape(title)}</title>",
        f'<text x="{_LEFT}" y="14">{escape(title)}: a token of {whole / 1e3:,.1f} µs</text>',
    ]
    place = _LEFT
    for kind, colour in [*colours.items(), ("waiting", _WAIT)]:
        lines += [
            f'<rect x="{place}" y="24" width="9" height="9" fill="{colour}"/>',
            f'<text x="{place + 13}" y="32">{kind}</text>',
        ]
        place += 30 + 7 * len(kind)
    for i, pieces in enumerate(by_worker):
        y = _TOP + _ROW * i
        lines.append(f'<text x="0" y="{y + 13}">worker {pieces[0].worker}</text>')
        for piece in pieces:
            name, kind = piece.phase.name, piece.phase.kind.name
            if piece.begun > piece.arrived:
                span = (piece.arrived - start, piece.begun - start)
                lines.append(_bar(span, scale, y, _WAIT, f"wait for {name}"))
            span = (piece.begun - start, piece.ended - start)
            lines.append(_bar(span, scale, y, colours[kind], name))
    foot, last = _TOP + _ROW * len(by_worker) + 14, f"{whole / 1e3:,.1f} µs"
    lines += [
        f'<text x="{_LEFT}" y="{foot}">0</text>',
        f'<text x="{_LEFT + _WIDTH}" y="{foot}" text-anchor="end">{last}</text>',
    ]
    return "\n".join([*lines, "</svg>"])


def _bar(span: tuple[int, int], scale: float, y: int, colour: str, name: str) -> str:
    begin, end = span
    told = f"{escape(name)}: {(end - begin) / 1e3:,.2f} µs"
    x, width = _LEFT + begin * scale, max(0.2, (end - begin) * scale)
    return (
        f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_ROW - 3}" fill="{colour}">'
        f"<title>{told}</title></rect>"
    )


def _middle(trace: Trace) -> Iterator[list[Slice]]:
    """Yield the slices of the middle pass, of each worker; a pass ends where phases begin anew."""
    ordered = sorted(trace.slices, key=lambda piece: (piece.worker, piece.arrived))
    for _, pieces in groupby(ordered, key=lambda piece: piece.worker):
        passes: list[list[Slice]] = []
        for piece in pieces:
            if not passes or piece.phase.index <= passes[-1][-1].phase.index:
                passes.append([])
            passes[-1].append(piece)
        yield passes[len(passes) // 2]


def _row(row: KindSummary) -> str:
    cells = (
        f"{row.busy_us:,.1f}",
        f"{row.bytes / 1e6:,.3f}",
        f"{row.gb_per_s:.2f}",
        f"{row.waiting_us:,.1f}",
        f"{row.waiting_share:.1%}",
    )
    return f"<tr><td>{row.kind}</td>{''.join(f'<td>{x}</td>' for x in cells)}</tr>"
