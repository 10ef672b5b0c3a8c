"""The names that the package gives out, and that its modules import each other in one direction."""

import re
import types
from graphlib import TopologicalSorter
from pathlib import Path

from monolane import text

FOLDER = Path(text.__file__).parent


def test_all_is_what_is_there() -> None:
    names = {
        name
        for name, value in vars(text).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert names == set(text.__all__)


def test_no_circle_among_its_modules() -> None:
    """Imports for the sake of types count too."""
    modules = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    imported = {name: _imports((FOLDER / f"{name}.py").read_text()) & modules for name in modules}
    assert sum(map(len, imported.values())) > len(modules)
    TopologicalSorter(imported).prepare()  # CycleError names a circle


def _imports(source: str) -> set[str]:
    """The modules and names that a source takes from the package."""
    lines = re.findall(r"^ *from monolane\.text(?:\.(\w+))? import (.*)", source, re.MULTILINE)
    return {name for module, names in lines for name in (module or names).split(", ")}
