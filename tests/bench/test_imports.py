"""No circle of imports in `bench`: every file can be read from the bottom up."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"
FILES = set(BENCH.rglob("*.py"))


def imported(path: Path) -> set[Path]:
    """The files of bench that one names in an import, wherever in it that stands."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            place = Path(*name.split(".")).with_suffix(".py")
            found |= {BENCH.parent / place, BENCH / place, path.parent / place} & FILES
    # bench/exchanges has files with the names of packages that they import: they run with -P.
    return found - {path}


def test_no_circle_of_imports() -> None:
    graph = {path: imported(path) for path in FILES}
    assert sum(map(len, graph.values())) > 100, "the imports are seen"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        names = [str(path.relative_to(BENCH)) for path in error.args[1]]
        raise AssertionError(f"a circle: {' imports '.join(reversed(names))}") from None
