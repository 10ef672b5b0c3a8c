import importlib.util
from pathlib import Path

import pytest

from monolane import _env
from monolane.errors import ConfigError


def test_unset_variables_have_defaults() -> None:
    assert _env.BACKEND.get() == "auto"
    assert _env.CACHE.get().name == "monolane"


def test_set_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLANE_BACKEND", "reference")
    monkeypatch.setenv("MONOLANE_CACHE", "~/elsewhere")
    assert _env.BACKEND.get() == "reference"
    assert _env.CACHE.get() == Path.home() / "elsewhere"


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is looked up before it is asked for, and then the variable is named."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("MONOLANE_CACHE", raising=False)

    def nobody(_: int) -> None:
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(ConfigError, match="MONOLANE_CACHE: expected a folder, .* set MONOLANE_C"):
        _env.CACHE.get()
    monkeypatch.setenv("MONOLANE_CACHE", "/elsewhere")
    assert _env.CACHE.get() == Path("/elsewhere")


def test_unknown_values_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLANE_BACKEND", "gpu")
    with pytest.raises(ConfigError, match="MONOLANE_BACKEND: expected one of auto.*got 'gpu'"):
        _env.BACKEND.get()


def test_every_variable_is_read_in_one_place() -> None:
    package = Path(_env.__file__).parent
    for path in package.rglob("*.py"):
        if path.name != "_env.py":
            text = path.read_text()
            assert "os.getenv" not in text, path
            assert '"MONOLANE_' not in text, path


def test_the_page_has_every_variable() -> None:
    path = Path(__file__).parents[1] / "scripts" / "variables_table.py"
    spec = importlib.util.spec_from_file_location("variables_table", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    (written,) = script.TABLE.findall(script.PAGE.read_text())
    assert written == script.table(), "run: python scripts/variables_table.py"
