"""The study's report: what results/*.jsonl say, as pictures and as README.md.

    python studies/dtp/report.py

A variant is judged at the best of the learning rates that it was given ("small" gives one, the
same to all), by its difference to the base of the size, "now" (ordinary tensor parallelism) or
"dense", under the same seed: same order of the data, so that much of the noise is shared.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study import RESULTS, best_rate, read_results
from variants import SIZES, VARIANTS, Size

BASE = "now"
HERE = Path(__file__).parent
_MARK = "<!-- results: made by report.py, do not edit below -->\n"

# Two-sided 95 % points of Student's t for n - 1 degrees of freedom, n = 2 .. 10.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class Verdict:
    """A variant at its best rate: its losses by seed, and how they differ from the base's."""

    variant: str
    learning_rate: float
    nats: dict[int, float]  # by seed
    differences: tuple[float, ...]  # to the base under the same seed

    @property
    def mean(self) -> float:
        """Mean held-out loss in nats per token."""
        return statistics.fmean(self.nats.values())

    @property
    def difference(self) -> float:
        """Mean difference to the base in nats per token."""
        return statistics.fmean(self.differences)

    @property
    def margin(self) -> float:
        """Half of the 95 % interval of the difference; infinite with less than two seeds."""
        n = len(self.differences)
        if n < 2:
            return math.inf
        t = _T95[min(n, len(_T95) + 1) - 2]
        return t * statistics.stdev(self.differences) / math.sqrt(n)


def verdicts(lines: Sequence[dict[str, Any]], of: str = BASE) -> list[Verdict]:
    """Return a verdict for each variant that was run; the base must be among them."""
    found = {line["variant"] for line in lines}
    best = {variant: best_rate(lines, variant) for variant in VARIANTS if variant in found}
    nats = {
        variant: {
            line["seed"]: line["held_out_nats"]
            for line in lines
            if (line["variant"], line["learning_rate"]) == (variant, rate)
        }
        for variant, rate in best.items()
    }
    base = nats[of]
    return [
        Verdict(
            variant,
            best[variant],
            losses,
            tuple(loss - base[seed] for seed, loss in losses.items() if seed in base),
        )
        for variant, losses in nats.items()
    ]


def table(lines: Sequence[dict[str, Any]], of: str = BASE) -> list[str]:
    """Return the verdicts of one size as Markdown."""
    rows = [
        f"| variant | parameters | rate | seeds | held-out nats/token | against `{of}` |",
        "|---|---|---|---|---|---|",
    ]
    parameters = {line["variant"]: line["parameters"] for line in lines}
    for v in verdicts(lines, of):
        against = "" if v.variant == of else f"{v.difference:+.4f}"
        if against and math.isfinite(v.margin):
            against += f" ± {v.margin:.4f}"
        rows.append(
            f"| {v.variant} | {parameters[v.variant]:,} | {v.learning_rate:g} | {len(v.nats)} "
            f"| {v.mean:.4f} | {against} |"
        )
    return rows


def draw(size: Size, lines: Sequence[dict[str, Any]], folder: Path) -> list[str]:
    """Draw one size's pictures; return their file names. One of rates where these were searched."""
    import matplotlib as mpl

    mpl.use("svg")
    # Text as text, and names of elements that do not change from one drawing to the next.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "monolane", "font.size": 9})
    from matplotlib import pyplot

    found = verdicts(lines, size.base)
    judged = [v for v in found if v.variant != size.base]
    figure, axes = pyplot.subplots(figsize=(7, 3), layout="constrained")
    for place, v in enumerate(judged):
        axes.plot([place] * len(v.differences), v.differences, "o", color="#888", markersize=3)
        if math.isfinite(v.margin):
            axes.errorbar(place, v.difference, v.margin, fmt="_", color="#c33", capsize=4)
    axes.axhline(0, color="#444", linewidth=0.8)
    axes.set_xticks(range(len(judged)), [v.variant for v in judged], rotation=25, ha="right")
    axes.set_ylabel(f"nats/token against {size.base}")
    axes.set_title(f"{size.name}: held-out loss, each dot a seed, the bar a 95 % interval")
    files = [f"{size.name}-differences.svg"]
    _save(figure, folder / files[-1])

    if size.rates_of is None:
        files.append(f"{size.name}-rates.svg")
        _save(_rates(size.name, lines), folder / files[-1])

    figure, axes = pyplot.subplots(figsize=(7, 3), layout="constrained")
    for v in found:
        curve = next(
            line["held_out_curve"]
            for line in lines
            if (line["variant"], line["learning_rate"], line["seed"])
            == (v.variant, v.learning_rate, 0)
        )
        axes.plot(*zip(*curve, strict=True), "o-", label=v.variant, linewidth=1, markersize=3)
    axes.set_xlabel("step")
    axes.set_ylabel("held-out nats/token")
    axes.legend(fontsize=7, ncols=3)
    axes.set_title(f"{size.name}: the best rate of each variant, seed 0")
    files.append(f"{size.name}-curves.svg")
    _save(figure, folder / files[-1])
    return files


def _rates(name: str, lines: Sequence[dict[str, Any]]) -> Any:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3), layout="constrained")
    for variant in dict.fromkeys(line["variant"] for line in lines):
        points = sorted(
            (line["learning_rate"], line["held_out_nats"])
            for line in lines
            if line["variant"] == variant and line["seed"] == 0
        )
        axes.plot(*zip(*points, strict=True), "o-", label=variant, linewidth=1, markersize=3)
    axes.set_xscale("log")
    axes.set_xlabel("peak learning rate")
    axes.set_ylabel("held-out nats/token")
    axes.legend(fontsize=7, ncols=3)
    axes.set_title(f"{name}: the search over learning rates, seed 0")
    return figure


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    text = "\n".join(line.rstrip() for line in path.read_text().splitlines())
    path.write_text(text + "\n")


def report(results: Path, folder: Path) -> str:
    """Draw all sizes that have results; return the part of README.md that is made."""
    sections = []
    for size in SIZES.values():
        lines = read_results(results / f"{size.name}.jsonl")
        if not any(line["variant"] == size.base for line in lines):
            continue
        files = draw(size, lines, folder)
        hours = sum(line["seconds"] for line in lines) / 3600
        shape = (
            f"{size.layers} layers, hidden {size.hidden}, inner {size.inner}, {size.heads} heads; "
            f"rows of {size.context} tokens, {size.rows} a step, {size.steps:,} steps; "
            f"{len(lines)} runs, {hours:.1f} hours in all."
        )
        sections += [
            f"### {size.name}: {size.tokens / 1e6:.1f} M tokens",
            shape,
            "\n".join(table(lines, size.base)),
            "\n".join(f"![{Path(file).stem}](results/{file})" for file in files),
        ]
    return "\n\n".join(sections) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Draw the pictures and bring README.md up to date."""
    parser = argparse.ArgumentParser(description="Make the study's report from its results.")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    readme = HERE / "README.md"
    before, mark, _ = readme.read_text().partition(_MARK)
    if not mark:
        raise SystemExit(f"{readme}: expected the line {_MARK.strip()!r}, found none; put it back")
    readme.write_text(before + mark + "\n" + report(options.results, options.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
