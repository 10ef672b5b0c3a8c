"""Imports go one way: no circle among the modules of a package, nor among its folders."""

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    **{f"monolane.{f.parent.name}": f.parent for f in ROOT.glob("src/monolane/*/__init__.py")},
    "bench.gpu": ROOT / "bench/gpu",
}
Graph = Mapping[str, set[str]]


def imports(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Return which modules each imports, of those given; imports for types count as well."""
    found: dict[str, set[str]] = {}
    for module, source in sources.items():
        names: set[str] = set()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    names.add(whole if whole in sources else node.module)
        found[module] = (names & sources.keys()) - {module}
    return found


def read(package: str) -> dict[str, set[str]]:
    """Return the graph of a package's files; a folder's __init__ has the folder's name."""
    sources = {}
    for path in sorted(PACKAGES[package].rglob("*.py")):
        parts = path.relative_to(PACKAGES[package]).with_suffix("").parts
        inside = parts[:-1] if parts[-1] == "__init__" else parts
        sources[".".join((package, *inside))] = path.read_text()
    return imports(sources)


def folders(graph: Graph, package: str) -> dict[str, set[str]]:
    """Return the graph with all modules of a folder of the package as one node."""
    depth = package.count(".") + 2
    node = {module: ".".join(module.split(".")[:depth]) for module in graph}
    merged: dict[str, set[str]] = {}
    for module, targets in graph.items():
        merged.setdefault(node[module], set()).update(node[target] for target in targets)
    return {one: targets - {one} for one, targets in merged.items()}


def circles(graph: Graph) -> set[frozenset[str]]:
    """Return the groups of nodes that all reach each other."""

    def reached(node: str) -> set[str]:
        seen: set[str] = set()
        new = {node}
        while new := {target for node in new for target in graph[node]} - seen:
            seen |= new
        return seen

    reach = {node: reached(node) for node in graph}
    return {
        frozenset(other for other in reach[node] if node in reach[other])
        for node in graph
        if node in reach[node]
    }


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_modules_and_folders_import_one_way(package: str) -> None:
    graph = read(package)
    found = circles(graph) | circles(folders(graph, package))
    assert {tuple(sorted(circle)) for circle in found} == set()


def test_a_circle_is_seen() -> None:
    sources = {
        "monolane.x.a": "def f():\n    from monolane.x import b",
        "monolane.x.b": "from monolane.x.c import name",
        "monolane.x.c": "import monolane.x.a",
        "monolane.x.d": "from monolane.x import a",
    }
    assert circles(imports(sources)) == {frozenset(f"monolane.x.{one}" for one in "abc")}
    straight = {**sources, "monolane.x.c": ""}
    assert circles(imports(straight)) == set()


def test_a_circle_of_folders_is_seen() -> None:
    sources = {
        "monolane.x._f.a": "from monolane.x._g.a import name",
        "monolane.x._g.a": "",
        "monolane.x._g.b": "from monolane.x._f.b import name",
        "monolane.x._f.b": "",
    }
    graph = imports(sources)
    assert circles(graph) == set()
    expected = {frozenset(("monolane.x._f", "monolane.x._g"))}
    assert circles(folders(graph, "monolane.x")) == expected
