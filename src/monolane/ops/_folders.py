"""The folders of operations are found by looking: no list names them.

A folder has a ``spec.py`` and, where somebody computes it, a ``reference.py`` and a ``plan.py``.
"""

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType

from monolane.ops._spec import Operation


def modules(file: str) -> Iterator[ModuleType]:
    """Import the file of that name of each folder that has it, in the order of their names.

    file  "spec", "reference" or "plan"
    """
    package = __name__.rpartition(".")[0]
    own = import_module(package)
    for found in iter_modules(own.__path__):
        name = f"{package}.{found.name}.{file}"
        if found.ispkg and find_spec(name) is not None:
            yield import_module(name)


def operations() -> tuple[type[Operation], ...]:
    """Return every operation that there is."""
    return tuple(
        found
        for module in modules("spec")
        for found in vars(module).values()
        if isinstance(found, type)
        and issubclass(found, Operation)
        and found.__module__ == module.__name__
    )
