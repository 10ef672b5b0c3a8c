"""Writes the table of docs/settings.md from ``_env``: `python scripts/variables_table.py`."""

import re
from pathlib import Path

from monolane import _env

PAGE = Path(__file__).resolve().parents[1] / "docs" / "settings.md"
TABLE = re.compile(r"(?<=<!-- variables -->\n).*?(?=<!-- /variables -->)", re.DOTALL)


def table() -> str:
    """Return a row for each variable that a user sets."""
    rows = ["| variable | what it says |", "|---|---|"]
    told = [x for x in _env.VARIABLES if x is not _env.LAUNCHER]
    return "\n".join([*rows, *(f"| `{x.name}` | {x.meaning} |" for x in told)]) + "\n"


def main() -> None:
    """Write it."""
    PAGE.write_text(TABLE.sub(lambda _: table(), PAGE.read_text()))


if __name__ == "__main__":
    main()
