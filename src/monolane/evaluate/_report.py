"""One report of a run, as JSON, Markdown and one page of HTML that needs nothing beside it."""

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment

from monolane._version import __version__
from monolane.evaluate._published import published
from monolane.evaluate._question import Figure
from monolane.evaluate._task import Outcome
from monolane.measure import describe_machine, writing_told

SCHEMA = 1
_EARLIER = "Found by an earlier command, which ended"
Report = dict[str, Any]


def build_report(
    about: Mapping[str, Any], outcomes: Sequence[Outcome], command: str, of: str | None = None
) -> Report:
    """Return the report of what was found of one subject.

    ``of``: the model whose published figures stand beside ours; without it, that of ``about``.
    """
    model = of or str(about["model"])
    compared = [
        replace(outcome, figures=tuple(_compared(f, model, outcome.task) for f in outcome.figures))
        for outcome in outcomes
    ]
    return {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "monolane": __version__,
        "command": command,
        "subject": dict(about),
        "machine": describe_machine(),
        "tasks": [outcome.record() for outcome in compared],
    }


def with_earlier(report: Report, folder: Path) -> Report:
    """Return a report with the tasks of the one in ``folder`` of which it has no figures itself.

    Those of another subject are not taken, nor those of a file that is no report of this schema.
    """
    reported = {task["task"]: task for task in report["tasks"]}
    kept = {}
    try:
        earlier = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        subject = json.loads(json.dumps(report["subject"]))
        if earlier["schema"] != SCHEMA or earlier["subject"] != subject:
            return report
        for task in earlier["tasks"]:
            ours = reported.get(task["task"])
            if ours is None or (task["figures"] and not ours["figures"]):
                kept[task["task"]] = _kept(task, earlier)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return report
    own = [task for name, task in reported.items() if name not in kept]
    return report | {"tasks": [*own, *kept.values()]}


def _kept(task: Mapping[str, Any], earlier: Report) -> dict[str, Any]:
    """Return an earlier report's task, with a note of when it was found; KeyError if it is none."""
    record = {name: task[name] for name in (x.name for x in fields(Outcome))}
    if any(note.startswith(_EARLIER) for note in record["notes"]):
        return record
    note = f"{_EARLIER} {earlier['date']}, by monolane {earlier['monolane']}."
    return {**record, "notes": [*record["notes"], note]}


def write_report(folder: Path, report: Report) -> list[Path]:
    """Write report.json, report.md and report.html; a reader never sees half of one.

    RequestError where the disk refuses.
    """
    texts = {
        "report.json": json.dumps(report, indent=1) + "\n",
        "report.md": render_markdown(report),
        "report.html": render_page(report),
    }
    written = []
    with writing_told(folder):
        for name, text in texts.items():
            temporary = folder / f".{name}"
            temporary.write_text(text, encoding="utf-8")
            written.append(temporary.replace(folder / name))
    return written


def render_markdown(report: Report) -> str:
    """Return the report as Markdown."""
    lines = [f"# Evaluation of {report['subject']['model']}", ""]
    lines += [*(f"- {fact}" for fact in _facts(report)), f"- Command: `{report['command']}`", ""]
    for task in report["tasks"]:
        lines += [f"## {task['title']}", ""]
        beside = _has_published(task)
        head = ["metric", "value", "95 % interval", "items", *(["published"] if beside else [])]
        if task["figures"]:
            lines += [_row(head), _row(["---", *["---:"] * (len(head) - 1)])]
        for figure in task["figures"]:
            cells = [figure["metric"], number(figure), interval(figure), f"{figure['count']:,}"]
            lines.append(_row([*cells, _of(figure)] if beside else cells))
        lines += ["", *(f"- {note}" for note in task["notes"])]
        if speed := speed_line(task["speed"]):
            lines.append(f"- Speed: {speed}")
        if count := len(task["answers"]):
            lines.append(f"- Answers: {count:,}, each in report.html and report.json")
        if settings := settings_line(task["settings"]):
            lines.append(f"- Settings: {settings}")
        lines.append("")
    return "\n".join(lines)


def render_page(report: Report) -> str:
    """Return the report as one page; nothing in it is taken from elsewhere."""
    source = resources.files("monolane.evaluate").joinpath("templates/report.html")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "number": number,
        "interval": interval,
        "speed": speed_line,
        "verdict": verdict,
        "settings": settings_line,
        "published": _of,
        "beside": _has_published,
    }
    page = environment.from_string(source.read_text("utf-8"))
    return page.render(report=report, facts=_facts(report))


def number(figure: Mapping[str, Any]) -> str:
    """Return a value with its unit: percents to two places, others to four digits."""
    if figure["unit"] == "%":
        return f"{figure['value']:.2f} %"
    return f"{figure['value']:.4g} {figure['unit']}".strip()


def interval(figure: Mapping[str, Any]) -> str:
    """Return an interval and how it was found; "" where there is none."""
    if figure["low"] is None:
        return ""
    places = ".2f" if figure["unit"] == "%" else ".4g"
    return f"{figure['low']:{places}} to {figure['high']:{places}} ({figure['interval']})"


def speed_line(speed: Mapping[str, Any]) -> str:
    """Return how fast answers came, in words."""
    if not speed:
        return ""
    rate = speed["median_tokens_per_s"]
    shown = "not measured" if rate is None else f"{rate:,.1f} tokens/s (median; {speed['clock']})"
    return (
        f"{shown}, {speed['answers']:,} answers, {speed['prompt_tokens']:,} tokens read, "
        f"{speed['tokens']:,} drawn, {speed['cut']:,} answers cut at the limit"
    )


def verdict(score: float | None) -> str:
    """Return a score as a word, or as a number where it is neither right nor wrong."""
    if score is None:
        return "no score"
    return {0.0: "wrong", 1.0: "right"}.get(float(score)) or f"{score:.4g}"


def settings_line(settings: Mapping[str, Any]) -> str:
    """Return settings in one line."""
    return ", ".join(f"{key} {_plain(value)}" for key, value in settings.items() if key != "task")


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{key} {_plain(each)}" for key, each in value.items()) + ")"
    return json.dumps(value) if isinstance(value, list | bool) else str(value)


def _compared(figure: Figure, model: str, task: str) -> Figure:
    return replace(figure, published=published(model, task, figure.metric))


def _facts(report: Report) -> list[str]:
    subject = report["subject"]
    about = ", ".join(f"{key} {_plain(value)}" for key, value in subject.items() if key != "model")
    machine = report["machine"]
    return [
        f"Model: {subject['model']} ({about})",
        f"Machine: {machine['name']}, {machine['cores']} cores, {machine['memory_gb']} GB",
        f"monolane {report['monolane']}, {report['date']}",
    ]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _has_published(task: Mapping[str, Any]) -> bool:
    return any(figure["published"] is not None for figure in task["figures"])


def _of(figure: Mapping[str, Any]) -> str:
    return "" if figure["published"] is None else f"{figure['published']:.2f} %"
