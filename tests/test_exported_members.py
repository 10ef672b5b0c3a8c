"""What a package offers is what its ``__all__`` says, neither more nor less."""

import importlib
import types
from pathlib import Path

import pytest

import monolane

PACKAGE = Path(monolane.__file__).parent
PACKAGES = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file())
OPTIONAL = {"hf", "train", "tune"}  # need torch
# Names of the contract that users know from here; all others are offered where they are made.
PASSED_ON = {
    "engine": {"Guide", "RankAddresses", "TokenLogprob"},
    # Whoever reads a config meets its operations there.
    "model": set(importlib.import_module("monolane.ops").__all__),
    "plan": {"Buffer"},
}


@pytest.mark.parametrize("package", PACKAGES)
def test_all_is_the_namespace(package: str) -> None:
    if package in OPTIONAL:
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    module = importlib.import_module(f"monolane.{package}")
    made_here = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and _home(value).startswith(f"monolane.{package}")
    }
    assert made_here <= set(module.__all__)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for name in set(module.__all__) - PASSED_ON.get(package, set()):
        home = _home(getattr(module, name))
        # A value's home is its class's, which may be a leaf such as monolane._structs.
        here = home.startswith((f"monolane.{package}", "monolane._"))
        assert here or not home.startswith("monolane."), name


def _home(value: object) -> str:
    return "" if isinstance(value, types.ModuleType) else getattr(value, "__module__", "") or ""


def test_the_package_offers_its_names_lazily() -> None:
    for name in monolane.__all__:
        assert getattr(monolane, name) is not None
    assert set(dir(monolane)) == set(monolane.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        monolane.nonsense  # noqa: B018
