"""Draws the pictures of measurements in docs/images, from bench/results.

    python bench/curves.py            draws them
    python bench/curves.py --check    exit code 1 if they are not of the results they should be of

Each picture holds names and SHA-256 of the results files that it shows: ``--check`` goes by those,
since another release of matplotlib may draw the same curve with other digits.
"""

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS, IMAGES = ROOT / "bench" / "results", ROOT / "docs" / "images"
# Text stays text, in whatever sans-serif font the reader has, and nothing is drawn by chance. The
# ground is white, so that a dark page shows the same picture.
# One font by name: with text as text, each of its words repeats the whole list.
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "monolane",
    "font.size": 9,
    "font.sans-serif": ["DejaVu Sans"],
}

Record = dict[str, Any]


def sources_of(picture: "Picture", results: Path) -> list[Path]:
    """Return the files of a picture; none if the first of its endings has none."""
    found = [sorted(results.glob(f"[0-9]*{ending}")) for ending in picture.endings]
    if not found[0]:
        return []
    if picture.every:
        return [path for paths in found for path in paths]
    return [max(paths, key=lambda path: path.name[:10]) for paths in found if paths]


def origin(sources: list[Path]) -> str:
    """Return what a picture says of where it comes from."""
    return "; ".join(
        f"{path.name} sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" for path in sources
    )


def draw(picture: "Picture", sources: list[Path], path: Path) -> None:
    """Write the picture of results files; the same files give the same bytes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    records: list[Record] = []
    for source in sources:
        document = json.loads(source.read_text(encoding="utf-8"))
        device = document.get("device", {}).get("name")
        records += [record | {"device": device} for record in document["records"]]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=picture.inches, layout="constrained")
        picture.fill(figure, records)
        path.parent.mkdir(parents=True, exist_ok=True)
        told = {"Date": None, "Creator": None, "Description": origin(sources)}
        figure.savefig(path, format="svg", metadata=told)


def draw_load(figure: Any, records: list[Record]) -> None:
    """Draw the speed of one request and of all, against how many run."""
    series = by_policy(records)
    panels = figure.subplots(1, 2)
    titles = ("tokens/s of one request, median", "tokens/s of all requests")
    for axes, key, title in zip(panels, ("median", "total_tokens_per_s"), titles, strict=True):
        for policy, points in series.items():
            clients = [point["clients"] for point in points]
            axes.plot(clients, [point[key] for point in points], marker="o", label=policy)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("concurrent requests")
        axes.set_xticks(sorted({p["clients"] for points in series.values() for p in points}))
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    panels[0].legend(frameon=False)


def draw_overlap(figure: Any, records: list[Record]) -> None:
    """Draw speed against link delay: measured as dots, simulated as lines; a panel for a shape."""
    shapes = {"demo": (8, "8 CPUs"), "smollm2": (3, "3 CPUs"), "2b": (8, "8 H200, never run on")}
    for axes, (shape, (ranks, device)) in zip(figure.subplots(1, 3), shapes.items(), strict=True):
        # Of two files with the same shape the later one counts.
        rules = {r["rule"]: r for r in records if (r["shape"], r["ranks"]) == (shape, ranks)}
        for color, (rule, record) in enumerate(rules.items()):
            points, look = record["points"], f"C{color}"
            links = [point["link_us"] for point in points]
            axes.plot(links, [point["simulated"] for point in points], look, linewidth=1)
            medians = [point["median"] for point in points]
            axes.plot(links, medians, f"{look}o", markersize=4, label=rule)
        model = "" if not rules else next(iter(rules.values()))["model"].split(",")[0]
        axes.set_title(f"{model}\n{ranks} ranks: {device}", fontsize=9)
        axes.set_xlabel("link delay of an exchange, us")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        if shape == "demo":
            axes.set_ylabel("tokens/s")
            axes.legend(frameon=False, title="others are read")
    figure.suptitle(
        "Timed compute: real processes and exchanges, modelled times of phases. "
        "Dots: measured. Lines: simulator.",
        fontsize=9,
    )


def draw_peers(figure: Any, records: list[Record]) -> None:
    """Draw how many times as fast as its peers an engine is: dots, with all pairs' range."""
    drawn = [r for r in records if any(case(r) for case in _CASES.values())]
    drawn = [r for r in drawn if not _PEERS.keys().isdisjoint(r)]
    # Files come in the order of their names, which begin with the date: the newest run is left.
    ours = list({(_row(r), r["name"], r["context"]): r for r in drawn}.values())
    rows = sorted({_row(r) for r in ours}, reverse=True)
    panels = figure.subplots(1, len(_CASES), sharex=True, sharey=True)
    for axes, (title, holds) in zip(panels, _CASES.items(), strict=True):
        for color, (ratio, peer) in enumerate(_PEERS.items()):
            shown = [r for r in ours if holds(r) and ratio in r]
            heights = [rows.index(_row(r)) + 0.2 * (0.5 - color) for r in shown]
            ends = [[r[f"{ratio}_{end}"] for r in shown] for end in ("min", "max")]
            axes.hlines(heights, *ends, color=f"C{color}", linewidth=1, alpha=0.6)
            axes.plot([r[ratio] for r in shown], heights, f"C{color}o", markersize=4, label=peer)
        axes.axvline(1, color="0.5", linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_xticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
        axes.set_yticks(range(len(rows)), rows, fontsize=7)
        axes.tick_params(left=False, which="both")
        axes.minorticks_off()
        axes.set_title(title, fontsize=9)
        axes.grid(alpha=0.3)
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        frameon=False,
        title=_AXIS,
    )


_AXIS = (
    "times as fast, two cores, the same file (laneformer-2b: a Llama of its sizes): medians of "
    "the newest run's pairs, and their range"
)
_PEERS = {"ratio_to_llama_cpp": "as llama.cpp", "ratio_to_ik_llama_cpp": "as ik_llama.cpp"}
_CASES: dict[str, Callable[[Record], bool]] = {
    "decode behind 128 tokens": lambda r: r["name"] == "decode" and r["context"] == 128,
    "decode behind 4,096": lambda r: r["name"] == "decode" and r["context"] == 4096,
    "prompt of 256 or 512": lambda r: r["name"] == "prefill",
}


def _row(record: Record) -> str:
    """Return the name of a row: model without its type and version, type, kind of processor."""
    model = re.split(rf"[-.]{record['dtype']}", record["model"])[0]
    kind = re.search(r"\(([^()]{3,})\)$", record["device"])
    device = record["device"] if kind is None else kind.group(1)
    return f"{model.removeprefix('synthetic-')}, {record['dtype']}, {device}"


def by_policy(records: list[Record]) -> dict[str, list[Record]]:
    """Return the records of mixed load, policy by policy, with growing load."""
    mixed = [record for record in records if record["name"] == "mixed_load"]
    series: dict[str, list[Record]] = {}
    for record in sorted(mixed, key=lambda record: record["clients"]):
        series.setdefault(record["policy"], []).append(record)
    return {policy: series[policy] for policy in sorted(series, key=_slots)}


def _slots(policy: str) -> int:
    """Return how many sequences a policy shares: "latency" 1, "share:4" 4."""
    return int(policy.split(":")[1]) if policy.startswith("share:") else 1


@dataclass(frozen=True)
class Picture:
    """What is drawn of the newest results files with these endings; the first must be there.

    Or of every one.
    """

    page: str
    endings: tuple[str, ...]
    fill: Callable[[Any, list[Record]], None]
    inches: tuple[float, float] = (7.6, 3.2)
    every: bool = False


PICTURES = {
    "mixed-load.svg": Picture("mixed-load.md", ("-serving.json",), draw_load),
    "mixed-load-2b.svg": Picture(
        "mixed-load.md", ("-serving-synthetic-laneformer-2b.json",), draw_load
    ),
    "dtp-overlap.svg": Picture(
        "dtp.md",
        ("-dtp-overlap.json", "-dtp-overlap-smollm2.json"),
        draw_overlap,
        inches=(9.6, 3.4),
    ),
    "peers.svg": Picture(
        "benchmarks.md", ("-peers.json",), draw_peers, inches=(10.4, 5.4), every=True
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """Draw, or check; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="draw nothing; 1 if one has drifted")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the files")
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder of the pictures")
    options = parser.parse_args(arguments)
    drifted = []
    for name, picture in PICTURES.items():
        sources, path = sources_of(picture, options.results), options.images / name
        if not sources:
            continue
        if not options.check:
            draw(picture, sources, path)
        elif not path.is_file() or origin(sources) not in path.read_text(encoding="utf-8"):
            drifted.append(path)
    for path in drifted:
        sys.stderr.write(f"curves: {path} is not of the newest results: python bench/curves.py\n")
    return 1 if drifted else 0


if __name__ == "__main__":
    sys.exit(main())
