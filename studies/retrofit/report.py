"""The study's report: the tables and the figures that results/ hold, and the page of answers.

python studies/retrofit/report.py
"""

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from design import (
    LANES,
    LENGTH,
    NINE,
    RESULTS,
    VARIANTS,
    Run,
    read_lines,
    result_paths,
)
from floor import Fall, fall, floors

HERE = Path(__file__).parent
ANSWERS = "ANSWERS.md"
_MARK = "<!-- results: made by report.py, do not edit below -->\n"
_KINDS = ("all", "library", "manuals", "own")
_MEASURES = {
    "nats": "nats/token",
    "perplexity": "perplexity",
    "kl": "KL, nats",
    "agreement": "same best guess",
    "accuracy": "next word right",
    "choice": "of four, right",
}


def before_table(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Return what the delays cost without training."""
    rows = [
        f"| variant | {' | '.join(_MEASURES.values())} | KL by text: library, manuals, own |",
        f"|---|{'---|' * (len(_MEASURES) + 1)}",
    ]
    for line in lines:
        exam = line["exam"]
        kinds = ", ".join(f"{exam[kind]['kl']:z.3f}" for kind in _KINDS[1:] if kind in exam)
        rows.append(f"| {line['variant']} | {_values(exam['all'])} | {kinds} |")
    return rows


def after_table(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Return every training, the least divergent of a variant and length first."""
    rows = [
        f"| variant | order | rate | tokens | seed | {' | '.join(_MEASURES.values())} |",
        f"|---|---|---|---|---|{'---|' * len(_MEASURES)}",
    ]
    places = list(VARIANTS)

    def place(line: dict[str, Any]) -> Any:
        run = line["run"]
        way = places.index(run["variant"]), run.get("lora", 0)
        return *way, -run["steps"], line["exam"]["all"]["kl"]

    for line in sorted(lines, key=place):
        run = Run(**line["run"])
        rows.append(
            f"| {_way(run)} | {run.order} | {run.rate:g} | {line['tokens']:,} | {run.seed} "
            f"| {_values(line['exam']['all'])} |"
        )
    return rows


def answer_table(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> list[str]:
    """Return what those lines answer that have answers, which came later than the first runs."""
    told = [(f"{line['variant']}, before", line) for line in before]
    told += [(_title(Run(**line["run"])), line) for line in after]
    told = [(title, line["answers"]) for title, line in told if "answers" in line]
    if not told:
        return []
    questions = list(told[0][1])
    rows = [f"| model | {' | '.join(questions)} |", f"|---|{'---|' * len(questions)}"]
    for title, by_question in told:
        rows.append(f"| {title} | {' | '.join(map(_cell, by_question.values()))} |")
    return rows


def _title(run: Run) -> str:
    return f"{_way(run)}, {run.steps} steps, seed {run.seed}"


def _way(run: Run) -> str:
    return f"{run.variant}, rank {run.lora}" if run.lora else run.variant


def ways(lines: Sequence[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Return (tokens, divergence) of all weights and of low-rank updates, the shortest run first.

    Of several rates at a length the best.
    """
    found: dict[str, dict[int, float]] = {}
    for line in lines:
        points = found.setdefault(_way(Run(**line["run"])), {})
        kl = float(line["exam"]["all"]["kl"])
        points[line["tokens"]] = min(kl, points.get(line["tokens"], kl))
    return {way: sorted(points.items()) for way, points in sorted(found.items())}


def length_table(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Return each way's fitted line, and what the line without its longest run foretells of it.

    Beside the floor, where it would be if each loss were as far off as that was.
    """
    rows = [
        "| what is trained | tokens | KL, nats | floor | power | the longest, foretold |",
        "|---|---|---|---|---|---|",
    ]
    for way, points in ways(lines).items():
        tokens, losses = zip(*points, strict=True)
        cells = ["", "", ""]
        if len(points) > 2:
            line = fall(tokens, losses)
            cells[:2] = f"{line.floor:.2f}", f"{line.power:.2f}"
        if len(points) > 3:
            foretold = fall(tokens[:-1], losses[:-1]).at(tokens[-1])
            least, most = floors(tokens, losses, abs(foretold - losses[-1]))
            cells[0] += f" ({least:.2f} to {most:.2f})"
            cells[2] = f"{foretold:.3f}"
        counts = ", ".join(f"{count:,}" for count in tokens)
        told = ", ".join(f"{value:.3f}" for value in losses)
        rows.append(f"| {way} | {counts} | {told} | {' | '.join(cells)} |")
    return rows


def draw_length(
    before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]], path: Path
) -> None:
    """Draw divergence against tokens, with the fitted lines and where the delay began."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(6, 3.4), layout="constrained")
    for (way, points), colour in zip(ways(after).items(), ("#36c", "#c33"), strict=False):
        tokens, losses = zip(*points, strict=True)
        axes.plot(tokens, losses, "o", color=colour, label=way, markersize=4)
        if len(points) > 2:
            line: Fall = fall(tokens, losses)
            far = [tokens[0] * (4 * tokens[-1] / tokens[0]) ** (i / 60) for i in range(61)]
            axes.plot(far, [line.at(x) for x in far], "-", color=colour, linewidth=1)
            axes.axhline(line.floor, color=colour, linewidth=0.6, linestyle=":")
    axes.set_xscale("log")
    axes.set_xlabel("tokens")
    axes.set_ylabel("KL from the source, nats/token")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)
    begun = next((x["exam"]["all"]["kl"] for x in before if x["variant"] != "delay 0"), None)
    axes.set_title("" if begun is None else f"before training: {begun:.2f} nats", fontsize=8)
    _save(pyplot, figure, path)


def answers_page(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> str:
    """Return the fifty questions: the source's answers, and those of each way's longest run."""
    told = [("the source", before[0]["answers"])]
    for way in ways(after):
        runs = [line for line in after if _way(Run(**line["run"])) == way]
        last = max(runs, key=lambda line: (line["tokens"], -line["exam"]["all"]["kl"]))
        told.append((_title(Run(**last["run"])), last["answers"]))
    heads = [title for title, _ in told]
    rows = [f"| question | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for question in before[0]["answers"]:
        rows.append(f"| {question} | {' | '.join(_cell(said[question]) for _, said in told)} |")
    head = (
        "The likeliest answers, of 40 tokens at most: to be read, not counted. Made by report.py "
        "of [the study](README.md)."
    )
    return "\n".join(["# Fifty questions", "", head, "", *rows, ""])


def _cell(text: str) -> str:
    """Return text as it stands in a cell of a table: in one line, and as code."""
    for mark, other in {"|": "\N{BOX DRAWINGS LIGHT VERTICAL}", "`": "'"}.items():
        text = text.replace(mark, other)
    return f"`{json.dumps(text, ensure_ascii=False)[1:-1]}`"


def _values(exam: dict[str, float]) -> str:
    shown = (
        f"{exam[name]:z.{1 if name == 'perplexity' else 3}f}" if name in exam else ""
        for name in _MEASURES
    )
    return " | ".join(shown)


def longest(lines: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the losses, by seed, of each variant's best rate and order in the longest runs."""
    steps = max((line["run"]["steps"] for line in lines), default=0)
    tried: dict[str, dict[Any, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in (line for line in lines if line["run"]["steps"] == steps):
        run = Run(**line["run"])
        tried[run.variant][run.rate, run.order].append(line["exam"]["all"]["nats"])
    return {variant: min(ways.values(), key=statistics.fmean) for variant, ways in tried.items()}


def draw(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw loss against delay, before and after training back; each dot is a seed."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(6, 3.4), layout="constrained")
    losses = {
        "before": {line["variant"]: [line["exam"]["all"]["nats"]] for line in before},
        "trained back": longest(after),
    }
    for (when, by_variant), style in zip(losses.items(), ("o--", "s-"), strict=True):
        for early, colour in ((False, "#c33"), (True, "#36c")):
            points = {
                int(VARIANTS[variant]["delay"]): by_variant[variant]
                for variant in VARIANTS
                if variant in by_variant
                and (bool(VARIANTS[variant].get("early")) == early or variant == "delay 0")
            }
            if not points:
                continue
            label = f"{when}, {'early exchanges' if early else 'none before the delay'}"
            means = [statistics.fmean(values) for values in points.values()]
            axes.plot(list(points), means, style, color=colour, label=label, markersize=4)
            for delay, values in points.items():
                axes.plot([delay] * len(values), values, ".", color="#888", markersize=3)
    axes.set_xlabel("delay, layers")
    axes.set_xticks(sorted({int(shape["delay"]) for shape in VARIANTS.values()}))
    axes.set_ylabel("held-out loss, nats/token")
    axes.legend(fontsize=7)
    axes.set_title("SmolLM2-135M-Instruct in 3 lanes")
    _save(pyplot, figure, path)


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("svg")
    # Text as text, and names of elements that do not change from one drawing to the next.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "monolane", "font.size": 9})
    from matplotlib import pyplot

    return pyplot


def _save(pyplot: Any, figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    text = "\n".join(line.rstrip() for line in path.read_text().splitlines())
    path.write_text(text + "\n")


def report(results: Path) -> str:
    """Draw the figure; return the part of README.md that is made."""
    before, after = map(read_lines, result_paths(results, LANES))
    sections = ["### Before training", "\n".join(before_table(before))]
    if after:
        sections += ["### Trained back", "\n".join(after_table(after))]
    draw(before, after, results / "delay.svg")
    picture = (results / "delay.svg").resolve().relative_to(HERE.resolve())
    sections.append(f"![loss against delay]({picture})")
    before, after = map(read_lines, result_paths(results, NINE))
    if before:
        sections += [f"### {NINE} lanes, before training", "\n".join(before_table(before))]
    if after:
        sections += [f"### {NINE} lanes, trained back", "\n".join(after_table(after))]
    if answers := answer_table(before, after):
        sections += [f"### {NINE} lanes, likeliest answers of 40 tokens", "\n".join(answers)]
    before, after = map(read_lines, result_paths(results, LANES, LENGTH))
    if after:
        draw_length(before, after, results / "length.svg")
        picture = (results / "length.svg").resolve().relative_to(HERE.resolve())
        sections += [
            "### Loss against tokens", "\n".join(length_table(after)),
            f"![divergence against tokens]({picture})",
            "\n".join(before_table(before)), "\n".join(after_table(after)),
            f"[Fifty questions]({ANSWERS}): the source's answers beside theirs.",
        ]  # fmt: skip
        (HERE / ANSWERS).write_text(answers_page(before, after))
    return "\n\n".join(sections) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Draw the figure and bring README.md up to date."""
    parser = argparse.ArgumentParser(description="Make the study's report from its results.")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    readme = HERE / "README.md"
    head, mark, _ = readme.read_text().partition(_MARK)
    if not mark:
        raise SystemExit(f"{readme}: expected the line {_MARK.strip()!r}, found none; put it back")
    readme.write_text(head + mark + "\n" + report(options.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
