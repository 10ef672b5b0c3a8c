"""Finds the lines that docs/decode-loop.md links to anew: `python scripts/mend_line_links.py`.

A link is [`name`](../csrc/file#L12). The line is that of the name's definition or declaration: the
first that has the name, is no comment, and begins at the margin; else the first that has it.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "decode-loop.md"
LINK = re.compile(r"\[`([\w:]+)`\]\(\.\./(csrc/[\w/.]+)#L\d+\)")


def line_of(name: str, path: str) -> int:
    """Return the line of a name in a file, from 1; ValueError where there is none."""
    lines = (ROOT / path).read_text().splitlines()
    word = re.compile(rf"\b{name}\b")
    found = [i for i, line in enumerate(lines, 1) if word.search(line.partition("//")[0])]
    if not found:
        raise ValueError(f"{path}: expected a line with {name}, got none; mend {PAGE.name}")
    defines = re.compile(rf"^(?=\S)(?:struct|class|[\w:<>*& ]+? [\w:]*?)\s*\b{name}\b\s*[({{]")
    return next((i for i in found if defines.match(lines[i - 1])), found[0])


def mend(page: str) -> str:
    """Return the page with the lines as they are now."""
    return LINK.sub(lambda m: f"[`{m[1]}`](../{m[2]}#L{line_of(m[1], m[2])})", page)


if __name__ == "__main__":
    PAGE.write_text(mend(PAGE.read_text()))
