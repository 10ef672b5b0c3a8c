"""The names that the package gives out."""

import types

from monolane import text


def test_all_is_what_is_there() -> None:
    names = {
        name
        for name, value in vars(text).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert names == set(text.__all__)
