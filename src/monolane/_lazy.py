"""Names of a package that need torch, which takes seconds to load: imported when first asked for.

So what cannot be done is refused before, and what needs no torch is done without.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec

from monolane.errors import MissingExtraError

_NEEDED = ("torch", "transformers", "tomli_w")


def torch_names(
    package: str, modules: Mapping[str, tuple[str, ...]], what: str, extra: str
) -> Callable[[str], object]:
    """Return a package's ``__getattr__`` for the names that each of its modules has.

    It raises MissingExtraError where ``what`` is not installed: ``extra`` has it.
    """
    places = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if not all(map(find_spec, _NEEDED)):
            raise MissingExtraError(what, extra)
        return getattr(import_module(f"{package}.{places[name]}"), name)

    return find
