"""Rows on stdout, in columns."""

import sys
from collections.abc import Sequence

from monolane._printable import printable


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a head and rows, as many texts each; the last column is as long as it is."""
    lines = [[x.upper() for x in head], *([printable(x) for x in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        padded = [x.ljust(width) for x, width in zip(line[:-1], widths, strict=False)]
        sys.stdout.write("  ".join((*padded, line[-1])) + "\n")
