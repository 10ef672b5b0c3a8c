"""docs/architecture.md is the law: no package imports one that its row does not name."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "monolane"
LEAVES = {
    "errors",
    "_cgroup",
    "_draw",
    "_env",
    "_lazy",
    "_loading",
    "_naming",
    "_options",
    "_printable",
    "_processor",
    "_progress",
    "_regular_files",
    "_results",
    "_schedule",
    "_structs",
    "_toml",
    "_version",
    "_core",
}


def table() -> dict[str, set[str]]:
    """Package -> packages that it may import, from the rows of docs/architecture.md."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", page, re.MULTILINE)
    packages = {package for package, _ in rows}
    return {
        package: packages - {"cli"}
        if allowed.strip() == "any"
        else set(re.findall(r"\w+", allowed)) & packages
        for package, allowed in rows
    }


ALLOWED = table()


def imports(source: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, parts after "monolane") of every import of ours, wherever it stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # Lazy imports are spelled as strings: "monolane.package._module:Name".
            names = re.findall(r"^(monolane\.[\w.]+):\w+$", node.value)
        else:
            continue
        for name in names:
            if name.split(".")[0] == "monolane":
                yield node.lineno, name.split(".")[1:]


# What a file of an operation's folder may import beside the specs, by its kind.
OF_OPERATIONS = {
    "reference": {"ops", "model", "reference"},
    "plan": {"ops", "model", "plan", "reference"},
}


def allowed(package: str, parts: tuple[str, ...]) -> set[str]:
    """Packages that a file may import: its row's, or in an operation's folder its kind's."""
    kind = parts[1].removesuffix(".py") if package == "ops" and len(parts) > 1 else ""
    return OF_OPERATIONS.get(kind, ALLOWED.get(package, set()))


def faults(package: str, source: str, *parts_of_file: str) -> list[str]:
    """Return what a file of a package imports against the table; its path begins below it."""
    found = []
    may = allowed(package, parts_of_file)
    for line, parts in imports(source):
        target = parts[0] if parts else ""
        if target in LEAVES or target == package:
            continue
        if target not in may:
            found.append(f"line {line}: {package} must not import monolane.{target}")
        elif len(parts) > 1 and parts[1].startswith("_"):
            found.append(f"line {line}: reaches past monolane.{target}'s __init__ to {parts[1]}")
    return found


PACKAGES = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file())


def test_every_package_has_a_row() -> None:
    assert set(PACKAGES) == set(ALLOWED)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_what_their_row_allows(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {fault}"
        for path in sorted((PACKAGE / package).rglob("*.py"))
        for fault in faults(package, path.read_text(), *path.relative_to(PACKAGE / package).parts)
    ]
    assert found == []


def test_nobody_imports_how_an_operation_is_computed_but_its_own_folder() -> None:
    """It is found by looking, so that packages below it can be imported without it."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        own = path.relative_to(PACKAGE).parts[:2]
        for line, parts in imports(path.read_text()):
            computed = parts[0] == "ops" and len(parts) > 2 and parts[2] in OF_OPERATIONS
            if computed and own != ("ops", parts[1]):
                found.append(f"{path.relative_to(ROOT)}: line {line}")
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import monolane.cli",
        "from monolane import cli",
        "def f():\n    from monolane.engine import Engine",
        "from monolane.model._config import ModelConfig",
        "X = 'monolane.engine._engine:Engine'",
        "from monolane import Engine",
    ],
)
def test_the_check_sees_a_forbidden_import(source: str) -> None:
    assert faults("reference", source)


def test_the_check_lets_allowed_ones_pass() -> None:
    source = "from monolane.model import Weights\nfrom monolane.errors import RequestError\n"
    assert faults("reference", source) == []


def test_an_operations_files_may_import_what_their_kind_does() -> None:
    source = "from monolane.plan.parts import Part\n"
    assert faults("ops", source, "mlp", "plan.py") == []
    assert faults("ops", source, "mlp", "reference.py")
    assert faults("ops", source, "mlp", "spec.py")
    assert faults("ops", "from monolane.reference import linear\n", "mlp", "reference.py") == []
