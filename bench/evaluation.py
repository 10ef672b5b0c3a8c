"""Keeps what ``monolane eval`` found, and writes the table of docs/evaluation.md from it.

    python bench/evaluation.py OUT [OUT ...] --out bench/results
    python bench/evaluation.py --page            writes the table; with --check: 1 if it has drifted

OUT are folders of ``monolane eval -o``, of one or several models. What a run could not measure,
and why, is a record too. The table is of all results files; of the same figure the last counts.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from _command import ROOT
from _document import publish

from monolane.evaluate import PUBLISHED, interval, number
from monolane.measure import Record

PAGE, RESULTS = ROOT / "docs" / "evaluation.md", ROOT / "bench" / "results"
BEGIN, END = "<!-- table: python bench/evaluation.py --page -->", "<!-- end of the table -->"
OF = "kogai/laneformer-2b-it"  # whose card has the figures that the table sets beside ours


def records_of(report: Mapping[str, Any]) -> Iterator[Record]:
    """Yield a record for each figure of a report, and for each task that has none."""
    subject = report["subject"]
    about = {
        "name": "evaluation",
        "engine": "monolane",
        "model": subject["model"],
        "dtype": subject.get("dtype", ""),
        "sha256": subject.get("sha256", ""),
        "command": report["command"],
    }
    for task in report["tasks"]:
        about["task"] = task["task"]
        if not task["figures"]:
            yield about | {"not_measured": task["notes"][0].removeprefix("Not measured: ")}
        for figure in task["figures"]:
            kept = ("metric", "value", "low", "high", "count", "unit", "interval")
            yield about | {key: figure[key] for key in kept}


def render(documents: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of documents by their files' names, the oldest first.

    A row for each figure, a column for each model; of the same figure the last counts.
    """
    records: Sequence[Record] = [r for document in documents.values() for r in document["records"]]
    links = ", ".join(f"[{name}](../bench/results/{name})" for name in documents)
    models = list(dict.fromkeys(record["model"] for record in records))
    rows: dict[tuple[str, str], dict[str, Record]] = {}
    missing: dict[tuple[str, str], str] = {}  # (model, task): why
    published = PUBLISHED[OF]
    for record in records:
        if "not_measured" in record:
            missing[record["model"], record["task"]] = record["not_measured"]
        else:
            missing.pop((record["model"], record["task"]), None)
            rows.setdefault((record["task"], record["metric"]), {})[record["model"]] = record
    # Of what was published no line is left out.
    rows = {key: rows.get(key, {}) for key in published} | rows
    lines = [
        f"From {links}. In brackets the 95 % interval, and the items.",
        "",
        f"| task | metric | {' | '.join(models)} | card of `{OF}` |",
        f"|---|---|{'---|' * (len(models) + 1)}",
    ]
    for (task, metric), found in rows.items():
        cells = [_cell(found.get(model)) for model in models]
        theirs = published.get((task, metric))
        shown = "" if theirs is None else f"{theirs:.2f} %"
        lines.append(f"| {task} | {metric} | {' | '.join(cells)} | {shown} |")
    reasons: dict[tuple[str, str], list[str]] = {}
    for (model, task), why in missing.items():
        reasons.setdefault((task, _plain(why)), []).append(model)
    lines += ["", *(f"- `{t}` of {', '.join(m)}: {why}." for (t, why), m in reasons.items())]
    return "\n".join(lines).rstrip() + "\n"


def _cell(record: Record | None) -> str:
    if record is None:
        return "not measured"
    ends, _, _ = interval(record).partition(" (")
    return f"{number(record)} ({ends}; {record['count']:,})" if ends else number(record)


def _plain(why: str) -> str:
    return " ".join(why.split()).rstrip(".").replace("|", "\\|")


def page_with(table: str) -> str:
    """Return docs/evaluation.md with this table in it."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    assert found, f"{PAGE}: expected {BEGIN} and {END}"
    return f"{before}{BEGIN}\n{table}{END}{after}"


def kept() -> dict[str, Any]:
    """Return all results of evaluations by their files' names, the oldest first."""
    return {
        path.name: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(RESULTS.glob("*-evaluation.json"))
    }


def main(arguments: list[str] | None = None) -> int:
    """Write a results file or the page; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="OUT")
    parser.add_argument("--out", type=Path, help="folder or file for the results")
    parser.add_argument("--page", action="store_true", help="write the table of the page")
    parser.add_argument("--check", action="store_true", help="with --page: write nothing")
    options = parser.parse_args(arguments)
    if options.folders:
        reports = [json.loads((folder / "report.json").read_text()) for folder in options.folders]
        records = [record for report in reports for record in records_of(report)]
        publish(records, "evaluation", options.out, timed=False)
    if not options.page:
        return 0
    text = page_with(render(kept()))
    if not options.check:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        sys.stderr.write(
            f"{PAGE} is not what bench/results says: python bench/evaluation.py --page\n"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
