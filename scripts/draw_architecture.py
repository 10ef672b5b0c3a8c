#!/usr/bin/env python3
"""Draws the two pictures of docs/architecture.md: packages.svg and token.svg in docs/images.

    python scripts/draw_architecture.py

Which package imports which is read from the page's own table, so that the picture cannot say
something else; tests/test_architecture.py fails where the committed files are not these. Only where
a box stands is decided here, by hand: a layout program would be a dependency for seventeen boxes.
"""

import re
from collections.abc import Iterator, Mapping
from html import escape
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
IMAGES = ROOT / "docs" / "images"

FONT = "font-family='Helvetica, Arial, sans-serif'"
INK, FAINT, PAPER = "#1f2933", "#5b6770", "#fcfcfb"  # a paper of its own: any page may be around it
RUNS, TRAINS, LEAF = ("#dbe9f9", "#3b6ea5"), ("#e3f1dc", "#5a8a45"), ("#f4ead7", "#a27a2c")
ANY = ("#ffffff", "#8a949c")

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # centre x, top, width, height

# ---- the packages ----

WIDTH, HEIGHT, STEP = 140, 72, 128  # of a box; from row to row
FITS = 24  # letters of small print in a box
# Package -> (centre x, row, colours). `cli`, which may import all, is the bar on top.
PLACES = {
    "evaluate": (685, 0, RUNS),
    "measure": (600, 1, RUNS),
    "sim": (390, 1, RUNS),
    "serve": (175, 1, RUNS),
    "train": (770, 2, TRAINS),
    "tune": (940, 1, TRAINS),
    "engine": (175, 2, RUNS),
    "cpu": (90, 3, RUNS),
    "cuda": (260, 3, RUNS),
    "reference": (430, 3, RUNS),
    "hf": (770, 3, TRAINS),
    "data": (940, 3, TRAINS),
    "plan": (600, 4, RUNS),
    "sources": (400, 4, RUNS),
    "executor_api": (175, 5, LEAF),
    "model": (600, 5, RUNS),
    "ops": (600, 6, LEAF),
    "text": (940, 5, LEAF),
}
# Points that an arrow passes on its way, between boxes: (x, y in rows).
DETOURS = {
    ("evaluate", "hf"): [(685, 1.0), (685, 2.5)],
    ("evaluate", "reference"): [(495, 1.0), (495, 2.5)],
    ("engine", "executor_api"): [(175, 2.96)],
    ("engine", "sources"): [(345, 2.96), (345, 3.56)],
    ("tune", "sources"): [(660, 2.0), (515, 2.96), (515, 3.56)],
    ("hf", "model"): [(690, 4.0), (690, 4.55)],
    ("reference", "model"): [(500, 4.0), (500, 4.55)],
    ("reference", "executor_api"): [(300, 4.0), (300, 4.55)],
}


def read_table() -> dict[str, tuple[list[str], list[str]]]:
    """Return package -> (what it imports, what it imports in some part only), from the page."""
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", PAGE.read_text(), re.MULTILINE)
    names = {name for name, _ in rows}
    found = {}
    for name, cell in rows:
        always, _, registry = cell.partition("behind the registry:")
        partly = [*re.findall(r"(\w+) \([^)]*\)", always), *re.findall(r"\w+", registry)]
        always = re.sub(r"\w+ \([^)]*\)", "", always)
        found[name] = ([x for x in re.findall(r"\w+", always) if x in names], partly)
    return found


def arrows(table: Mapping[str, tuple[list[str], list[str]]]) -> Iterator[tuple[str, str, bool]]:
    """Yield (from, to, partly); an import that a longer way implies is left out."""

    def reach(name: str) -> set[str]:
        return {name}.union(*(reach(x) for x in table[name][0]))

    for name, (always, partly) in table.items():
        for target in always:
            if not any(target in reach(other) for other in always if other != target):
                yield name, target, False
        for target in partly:
            yield name, target, True


def packages() -> str:
    """Return packages.svg."""
    table = {name: row for name, row in read_table().items() if name != "cli"}
    if missing := set(table) - set(PLACES):
        raise SystemExit(f"give these packages a place in {__file__}: {', '.join(sorted(missing))}")
    boxes = {name: (PLACES[name][0], _top(PLACES[name][1]), WIDTH, HEIGHT) for name in table}
    drawn = []
    lines = sorted(arrows(table))
    for name, target, partly in lines:
        if boxes[name][1] == boxes[target][1]:
            raise SystemExit(f"{name} imports {target}, in the same row: move one of them")
        points = _route(name, target, lines, boxes)
        for other, box in boxes.items():
            if other not in (name, target) and any(_inside(p, box) for p in _walk(points)):
                raise SystemExit(f"the arrow from {name} to {target} crosses {other}: move it")
        drawn.append(_arrow(points, dashed=partly))
    bar = (515, 24, 990, 44)
    drawn.append(_box(bar, "cli", ["one file per command; may import every package"], ANY))
    for name, box in boxes.items():
        drawn.append(_box(box, name, _print(*table[name]), PLACES[name][2]))
    foot = _top(7) - 26
    for x, colours, what in (
        (20, RUNS, "runs a model"),
        (150, TRAINS, "makes a model"),
        (288, LEAF, "imports none"),
    ):
        fill, edge = colours
        drawn.append(
            f"<rect x='{x}' y='{foot - 11}' width='14' height='14' rx='3' fill='{fill}' "
            f"stroke='{edge}'/>" + _text(x + 22, foot, what, 13, FAINT, anchor="start")
        )
    drawn.append(_arrow([(420, foot - 4), (460, foot - 4)]))
    drawn.append(_text(468, foot, "imports", 13, FAINT, anchor="start"))
    drawn.append(_arrow([(540, foot - 4), (580, foot - 4)], dashed=True))
    drawn.append(
        _text(588, foot, "in one module only, or when asked for by name", 13, FAINT, anchor="start")
    )
    note = "The small print names all imports. An arrow is left out where other arrows lead there."
    drawn.append(_text(20, foot + 24, note, 13, FAINT, anchor="start"))
    return _svg(1030, foot + 40, "The packages, and which imports which", drawn)


def _top(row: float) -> float:
    return 108 + row * STEP


def _print(always: list[str], partly: list[str]) -> list[str]:
    """Return the small print of a box: as many lines as its names need."""
    aside = f"({', '.join(partly)})" if partly else ""
    if always and aside and len(", ".join(always)) <= FITS:
        return [", ".join(always), aside]
    names = [*always, aside] if aside else always
    lines: list[str] = []
    for name in [f"{name}," for name in names[:-1]] + names[-1:]:
        if lines and len(f"{lines[-1]} {name}") <= FITS:
            lines[-1] += f" {name}"
        else:
            lines.append(name)
    return lines


def _route(
    name: str, target: str, lines: list[tuple[str, str, bool]], boxes: Mapping[str, Box]
) -> list[Point]:
    """Return the points of an arrow; the ends of all arrows are spread along the edges of a box."""
    up = boxes[target][1] < boxes[name][1]

    def port(box: str, other: str, below: bool) -> Point:
        x, top, width, height = boxes[box]
        pairs = {b if a == box else a for a, b, _ in lines if box in (a, b)}
        there = [one for one in pairs if (boxes[one][1] > top) == below]
        there.sort(key=lambda one: (boxes[one][0], one))
        share = (there.index(other) + 1) / (len(there) + 1)
        return x - width / 2 + width * share, top + height if below else top

    first, last = port(name, target, not up), port(target, name, up)
    return [first, *((x, _top(y)) for x, y in DETOURS.get((name, target), [])), last]


def _walk(points: list[Point]) -> Iterator[Point]:
    """Yield points along the curve that `_curve` draws."""
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        for i in range(41):
            t = i / 40
            a, b, c, d = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
            yield (a + b) * x0 + (c + d) * x1, a * y0 + (b + c) * middle + d * y1


def _inside(point: Point, box: Box) -> bool:
    x, top, width, height = box
    return abs(point[0] - x) < width / 2 + 4 and top - 4 < point[1] < top + height + 4


# ---- a token's way ----

# (where, what goes down, what comes up): the request's forms on the left, the token's on the right.
STATIONS = (
    (
        "serve",
        "event loop and its threads",
        ("ChatRequest", "checked; the chat template makes the prompt"),
        ("SSE bytes", "what came within 5 ms is one event"),
    ),
    (
        "engine",
        "the thread that reads the answer",
        ("SamplingParams", "ranges checked; the prompt becomes token ids"),
        ("Piece", "text that is certain, cut at stop texts; its ids"),
    ),
    (
        "executor_api",
        "the contract: plain values",
        ("Draw in an Advance", "slot, ids to feed, budget, stop ids, how to draw"),
        ("TokenEvent", "slot, token id, time, log-probability"),
    ),
    (
        "cpu, cuda",
        "the executor, in Python",
        ("a struct", "copied once an epoch, to C++ or to the GPU"),
        ("a ring", "lock-free, in C++; in pinned memory from a GPU"),
    ),
    (
        "csrc, cuda/kernels",
        "the workers: threads or GPU blocks",
        ("passes", "EMBED, the layers, HEAD: the plan's order"),
        ("CHOOSE", "the next token, which the next pass is fed"),
    ),
)


def token() -> str:
    """Return token.svg."""
    left, right, wide, high, step, top = 410, 775, 300, 66, 104, 78
    drawn = [
        _text(left, 40, "a request goes down, once", 15, INK),
        _text(right, 40, "its tokens come up, one by one", 15, INK),
    ]
    for i, (where, who, down, up) in enumerate(STATIONS):
        y = top + i * step
        colours = LEAF if where == "executor_api" else RUNS
        drawn.append(_text(24, y + 29, where, 15, INK, anchor="start", bold=True))
        drawn.append(_text(24, y + 48, who, 12, FAINT, anchor="start"))
        drawn.append(_box((left, y, wide, high), down[0], _wrap(down[1]), colours))
        drawn.append(_box((right, y, wide, high), up[0], _wrap(up[1]), colours))
        if i:
            drawn.append(_arrow([(left, y - step + high), (left, y)]))
            drawn.append(_arrow([(right, y), (right, y - step + high)]))
    last = top + (len(STATIONS) - 1) * step
    drawn.append(_arrow([(left + wide / 2, last + 22), (right - wide / 2, last + 22)], level=True))
    drawn.append(_arrow([(right - wide / 2, last + 46), (left + wide / 2, last + 46)], level=True))
    note = (
        "Without a constraint no Python runs between two tokens: the workers repeat the lowest row "
        "until the epoch ends."
    )
    drawn.append(_text(24, last + high + 34, note, 13, FAINT, anchor="start"))
    return _svg(949, last + high + 52, "A request's way down and a token's way up", drawn)


def _wrap(text: str) -> list[str]:
    words, lines = text.split(), [""]
    for word in words:
        if len(lines[-1]) + len(word) > 50:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


# ---- SVG ----


def _svg(width: float, height: float, title: str, drawn: list[str]) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:g} {height:g}' "
        f"width='{width:g}' height='{height:g}' role='img' {FONT}>\n"
        f"<!-- made by scripts/draw_architecture.py: do not edit -->\n<title>{title}</title>\n"
        f"<defs><marker id='tip' viewBox='0 0 8 8' refX='7.5' refY='4' markerWidth='7' "
        f"markerHeight='7' orient='auto'><path d='M0 0L8 4L0 8z' fill='{FAINT}'/></marker></defs>\n"
        f"<rect width='{width:g}' height='{height:g}' rx='10' fill='{PAPER}' stroke='#d5d9dc'/>\n"
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


def _text(
    x: float, y: float, text: str, size: int, ink: str, anchor: str = "middle", bold: bool = False
) -> str:
    weight = " font-weight='bold'" if bold else ""
    return (
        f"<text x='{x:g}' y='{y:g}' font-size='{size}' fill='{ink}' text-anchor='{anchor}'{weight}>"
        f"{escape(text)}</text>"
    )


def _box(box: Box, name: str, small: list[str], colours: tuple[str, str]) -> str:
    x, top, width, height = box
    fill, edge = colours
    first = top + height / 2 - 6 * len(small) + 4  # base line of the name
    lines = [_text(x, first, name, 15, INK, bold=True)]
    lines += [_text(x, first + 16 + 14 * i, line, 11, INK) for i, line in enumerate(small)]
    return (
        f"<rect x='{x - width / 2:g}' y='{top:g}' width='{width:g}' height='{height:g}' rx='6' "
        f"fill='{fill}' stroke='{edge}'/>" + "".join(lines)
    )


def _arrow(points: list[Point], dashed: bool = False, level: bool = False) -> str:
    x, y = points[0]
    path = f"M{x:.1f} {y:.1f}"
    for (_, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        path += (
            f"L{x1:.1f} {y1:.1f}"
            if level or y0 == y1
            else (f"C{x:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}")
        )
        x = x1
    dashes = " stroke-dasharray='5 4'" if dashed else ""
    return (
        f"<path d='{path}' fill='none' stroke='{FAINT}' stroke-width='1.4'{dashes} "
        "marker-end='url(#tip)'/>"
    )


PICTURES = {"packages.svg": packages, "token.svg": token}

if __name__ == "__main__":
    for file, draw in PICTURES.items():
        (IMAGES / file).write_text(draw(), encoding="utf-8")
