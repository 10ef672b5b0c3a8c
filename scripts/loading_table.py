"""Writes the table of docs/loading.md from ``Loading``: `python scripts/loading_table.py`."""

import re
from dataclasses import fields
from pathlib import Path

from monolane._loading import OPTIONS, Loading
from monolane._options import BACKENDS, COMMANDS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "loading.md"
TABLE = re.compile(r"(?<=<!-- options -->\n).*?(?=<!-- /options -->)", re.DOTALL)


def table() -> str:
    """Return a row for each option."""
    lines = [
        "| option | default | honoured by | other processes | what it is |",
        "|---|---|---|---|---|",
    ]
    for x in fields(Loading):
        said = OPTIONS[x.name]
        backends = "all" if said.honoured_by == BACKENDS else ", ".join(said.honoured_by)
        commands = [name for name in COMMANDS if said.help and name in said.commands]
        where = "all" if len(commands) == len(COMMANDS) else ", ".join(commands)
        spelled = f"`{x.name}`"
        if where:
            spelled += f"<br>`--{(said.spelled or x.name).replace('_', '-')}`: {where}"
        crosses = ", ".join(
            name for name, does in (("ranks", said.ranks), ("C++", said.kind)) if does
        )
        what = said.help or said.meaning
        what = re.sub(r" \[default: [^]]*\]\.", ".", what)
        if said.page:
            what = f"{what} [{said.page}]({said.page})"
        lines.append(f"| {spelled} | `{x.default}` | {backends} | {crosses} | {what} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write it."""
    PAGE.write_text(TABLE.sub(lambda _: table(), PAGE.read_text()))


if __name__ == "__main__":
    main()
