"""Draws docs/images/mixed-load*.svg, the curves of docs/mixed-load.md, from bench/results.

    python bench/curves.py            draws them
    python bench/curves.py --check    exit code 1 if they are not of the newest results

Each picture holds the name and the SHA-256 of the results file that it shows: ``--check`` goes by
those, since another release of matplotlib may draw the same curve with other digits.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS, IMAGES = ROOT / "bench" / "results", ROOT / "docs" / "images"
# The end of a results file's name, and the picture that is drawn of the newest such file.
PICTURES = {
    "-serving.json": "mixed-load.svg",
    "-serving-synthetic-laneformer-2b.json": "mixed-load-2b.svg",
}
_INCHES = (7.6, 3.2)
# Text stays text, in whatever sans-serif font the reader has, and nothing is drawn by chance.
_STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "monolane", "font.size": 9}

Record = dict[str, Any]


def newest(ending: str, results: Path) -> Path | None:
    """Return the last results file, by its date, with such an ending."""
    return max(results.glob(f"[0-9]*{ending}"), key=lambda path: path.name[:10], default=None)


def origin(source: Path) -> str:
    """Return what a picture says of where it comes from."""
    return f"{source.name} sha256:{hashlib.sha256(source.read_bytes()).hexdigest()}"


def draw(source: Path, path: Path) -> None:
    """Write the picture of a results file; the same file gives the same bytes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    series = by_policy(json.loads(source.read_text(encoding="utf-8"))["records"])
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=_INCHES, layout="constrained")
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
        path.parent.mkdir(parents=True, exist_ok=True)
        told = {"Date": None, "Creator": None, "Description": origin(source)}
        figure.savefig(path, format="svg", metadata=told)


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


def main(arguments: list[str] | None = None) -> int:
    """Draw, or check; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="draw nothing; 1 if one has drifted")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the files")
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder of the pictures")
    options = parser.parse_args(arguments)
    drifted = []
    for ending, name in PICTURES.items():
        source, path = newest(ending, options.results), options.images / name
        if source is None:
            continue
        if not options.check:
            draw(source, path)
        elif not path.is_file() or origin(source) not in path.read_text(encoding="utf-8"):
            drifted.append(path)
    for path in drifted:
        sys.stderr.write(f"curves: {path} is not of the newest results: python bench/curves.py\n")
    return 1 if drifted else 0


if __name__ == "__main__":
    sys.exit(main())
