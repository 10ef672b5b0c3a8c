"""The study's report: what results/runs.jsonl says, as README.md. Needs no torch.

    python studies/delay/report.py           # brings README.md up to date
    python studies/delay/report.py --last    # the last look: no further block will come

Each variant is compared with another under the same seed: the same rows in the same order, and the
same first matrices. The intervals are at 99 % before the last look, at 95 % at the last.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from studies.delay import stop  # noqa: E402
from studies.delay.plan import (  # noqa: E402
    CPU_PARTS,
    DONE,
    Line,
    Run,
    Study,
    merged,
    read_lines,
    write_lines,
)
from studies.delay.sizes import SEARCH_SEED, SEARCHED, SIZES, VARIANTS  # noqa: E402

HERE = Path(__file__).parent
MARK = "<!-- results: made by report.py, do not edit below -->\n"
NOTHING = "No block has been trained on a GPU yet, so of its size nothing can be said."
_PAIRS = (("delay 2", "dense"), ("naive 2", "dense"), ("naive 2", "delay 2"))
_TO_DENSE = (
    "dense, 8 layers",
    "dense, 14 layers", "dense, 13 layers", "dense, 80 % of the tokens", "delay 1", "delay 4",
    "delay 2, early", "delay 2, unscaled",
)  # fmt: skip


def report(study: Study) -> str:
    """Return the part of README.md that is made."""
    if study.runs():
        sections = [
            rule(study), blocks(study), beside(study), rates(study), full_length(study),
            larger(study), speeds(study), texts(study),
        ]  # fmt: skip
    else:
        sections = [NOTHING]
    if study.where == "gpu":
        sections.append(on_processors(Study(study.lines, "cpu", "CPU")))
    return "\n\n".join(section for section in sections if section) + "\n"


def on_processors(study: Study) -> str:
    """The size for processors, whose three blocks are looked at once, at 95 %."""
    if not study.runs():
        return ""
    ended = not study.missing(part for part in CPU_PARTS if part != "delay:depth")
    sections = [
        blocks(study, 95 if ended else None),
        beside(study),
        rates(study),
        speeds(study),
        texts(study),
    ]
    return "## On processors\n\n" + "\n\n".join(section for section in sections if section)


def rule(study: Study) -> str:
    """What the stop rule says."""
    return f"**The rule**: {study.look().text}."


def blocks(study: Study, level: int | None = 0) -> str:
    """The blocks, seed by seed, and the differences' intervals at a level: 0, that of the rule.

    None: it is too early for a look.
    """
    seeds = sorted(set(study.differences("delay 2", "dense")))
    if not seeds:
        return ""
    rows = ["### Blocks", "", _shape(study), "",
            "| seed | " + " | ".join(SEARCHED) + " | "
            + " | ".join(f"{a} - {b}" for a, b in _PAIRS) + " |",
            "|---|" + "---|" * (len(SEARCHED) + len(_PAIRS))]  # fmt: skip
    found = {pair: study.differences(*pair) for pair in _PAIRS}
    for seed in seeds:
        lines = [_line(study, variant, seed) for variant in SEARCHED]
        nats = [f"{x['exam_nats']:.4f}" if x else "" for x in lines]
        less = [f"{found[p][seed]:+.4f}" if seed in found[p] else "" for p in _PAIRS]
        rows.append(f"| {seed} | {' | '.join(nats + less)} |")
    if level is None:
        return "\n".join([*rows, "", "The look follows the last block."])
    level = level or (95 if study.is_last or len(seeds) >= stop.MOST else 99)
    means = [_interval(list(found[pair].values()), level) for pair in _PAIRS]
    rows.append(f"| mean{' |' * (len(SEARCHED) + 1)} {' | '.join(means)} |")
    return "\n".join(rows)


def beside(study: Study) -> str:
    """Yardsticks and other delays, against dense under the same seeds."""
    rows = []
    for variant in _TO_DENSE:
        found = study.differences(variant, "dense")
        if found:
            each = ", ".join(f"{value:+.4f}" for value in found.values())
            rows.append(f"| {variant} | {len(found)} | {each} |")
    if not rows:
        return ""
    head = ["### Beside the blocks", "", "| variant | seeds | nats a token less dense, by seed |",
            "|---|---|---|"]  # fmt: skip
    return "\n".join(head + rows)


def rates(study: Study) -> str:
    """The search, at its few tokens."""
    rows = []
    for variant in SEARCHED:
        by_rate = {x["rate"]: x for x in study.searched(variant)}
        if by_rate:
            cells = [_cell(by_rate.get(rate)) for rate in study.size.rates]
            rows.append(f"| {variant} | {' | '.join(cells)} | {study.best_rate(variant) or ''} |")
    if not rows:
        return ""
    tokens = study.size.search_tokens / 1e6
    head = [f"### The search: {tokens:g} M tokens, seed {SEARCH_SEED}", "",
            "| variant | " + " | ".join(f"{x:g}" for x in study.size.rates) + " | best |",
            "|---|" + "---|" * (len(study.size.rates) + 1)]  # fmt: skip
    return "\n".join(head + rows)


def full_length(study: Study) -> str:
    """The rates beside the best one, at full length."""
    rows = []
    for variant in SEARCHED:
        cells = []
        for factor in (0.5, 1.0, 2.0):
            run = study.run("", variant, SEARCH_SEED, factor)
            line = None if run is None else _found(study, run)
            cells.append(_cell(line))
        if any(cells):
            rows.append(f"| {variant} | {' | '.join(cells)} |")
    if not rows:
        return ""
    head = [f"### Rates beside the best at full length, seed {SEARCH_SEED}", "",
            "| variant | half | best of the search | twice |", "|---|---|---|---|"]  # fmt: skip
    return "\n".join(head + rows)


def larger(study: Study) -> str:
    """The larger size."""
    rows = []
    for seed in (1, 2):
        pair = [study.run("", name, seed, large=True) for name in ("dense", "delay 2")]
        lines = [None if run is None else study.line_of(run) for run in pair]
        if all(lines):
            dense, delay = (x["exam_nats"] for x in lines if x)
            rows.append(f"| {seed} | {dense:.4f} | {delay:.4f} | {delay - dense:+.4f} |")
    if not rows:
        return ""
    tokens = study.tokens(study.larger) / 1e6
    head = [f"### {study.larger.name}: {tokens:g} M tokens, rates by 1/width", "",
            "| seed | dense | delay 2 | less dense |", "|---|---|---|---|"]  # fmt: skip
    return "\n".join(head + rows)


def speeds(study: Study) -> str:
    """Tokens/s, memory and MFU of each card, beside what was estimated."""
    kinds: dict[tuple[str, str, str], list[Line]] = {}
    for line in study.runs():
        kinds.setdefault((line["card"], line["size"], line["variant"]), []).append(line)
    rows = []
    for (card, size, variant), lines in kinds.items():
        speed = sorted(x["tokens_per_s"] for x in lines)[len(lines) // 2]
        guess = SIZES[size].estimate[VARIANTS[variant].lanes > 1]
        memory = max(x["memory_gb"] or 0.0 for x in lines)  # neither is known of a processor
        mfu = max(x["mfu"] or 0.0 for x in lines)
        rows.append(
            f"| {card} | {size} | {variant} | {len(lines)} | {speed:,} | {speed / guess:.2f} "
            f"| {f'{memory:.1f}' if memory else ''} | {f'{mfu:.1%}' if mfu else ''} |"
        )
    head = ["### Speed", "",
            "| card | size | variant | runs | tokens/s | of the estimate | GB, most | MFU, most |",
            "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    return "\n".join(head + rows)


def texts(study: Study) -> str:
    """What was read."""
    found = [
        f"| {x['text']} | {x['card']} | {x['tokens'] / 1e6:.1f} | {x['exam_tokens']:,} "
        f"| {x['exam_share']:.1%} |"
        for x in study.lines if x["kind"] == "text"
    ]  # fmt: skip
    rows = list(dict.fromkeys(found))  # each command notes what it reads
    head = ["### Text", "", "| digest | card | M tokens | of the exam | of it counts |",
            "|---|---|---|---|---|"]  # fmt: skip
    return "\n".join(head + rows) if rows else ""


def _shape(study: Study) -> str:
    size = study.size
    return (
        f"{size.layers} layers, hidden {size.hidden}, inner {size.inner}, {size.heads} heads; rows "
        f"of {size.context:,} tokens, {size.rows} a step; {study.tokens(size) / 1e6:g} M tokens a "
        "run; held-out nats a token."
    )


def _line(study: Study, variant: str, seed: int) -> Line | None:
    run = study.run("", variant, seed)
    return None if run is None else study.line_of(run)


def _found(study: Study, run: Run) -> Line | None:
    return next((x for x in study.lines if x["kind"] == "run" and run.is_of(x)), None)


def _cell(line: Line | None) -> str:
    if line is None:
        return ""
    return f"{line['exam_nats']:.4f}" if line["state"] == DONE else str(line["state"])


def _interval(differences: Sequence[float], level: int) -> str:
    return str(stop.interval(differences, level)) if differences else ""


def main(arguments: list[str] | None = None) -> int:
    """Bring README.md up to date, or print a rehearsal's report."""
    parser = argparse.ArgumentParser(description="Make the study's report from its results.")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "runs.jsonl")
    parser.add_argument(
        "--last", action="store_true", help="note in the results that no further block will come"
    )
    parser.add_argument("--rehearse", action="store_true", help="of a rehearsal: print it")
    options = parser.parse_args(arguments)
    lines = read_lines(options.results)
    if options.last:
        lines = merged(lines, [{"kind": "last look"}])
        write_lines(options.results, lines)
    made = report(Study(tuple(lines), "rehearsal" if options.rehearse else "gpu"))
    if options.rehearse:
        sys.stdout.write(made)
        return 0
    readme = HERE / "README.md"
    before, mark, _ = readme.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise SystemExit(f"{readme}: expected the line {MARK.strip()!r}, found none; put it back")
    readme.write_text(before + mark + "\n" + made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
