"""Names that a user gives to models: kept in one file, refused where they are none."""

from pathlib import Path

import pytest

from monolane.errors import ConfigError
from monolane.sources import find_model, read_aliases, set_alias


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of settings that is not there yet."""
    monkeypatch.setenv("MONOLANE_CONFIG", str(tmp_path / "new" / "config"))
    return tmp_path / "new" / "config"


def test_an_alias_is_kept_and_forgotten(tmp_path: Path, config: Path) -> None:
    assert read_aliases() == {}
    set_alias("coder:small", str(tmp_path))
    set_alias("py", "demo")
    assert read_aliases() == {"coder:small": str(tmp_path), "py": "demo"}
    assert find_model("coder:small") == tmp_path
    assert find_model("py") == find_model("demo")
    assert [x.name for x in config.iterdir()] == ["aliases.json"]
    set_alias("py", None)
    assert read_aliases() == {"coder:small": str(tmp_path)}
    with pytest.raises(ConfigError, match="alias: expected one of coder:small, got 'py'"):
        set_alias("py", None)


def test_a_path_goes_before_an_alias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_alias("mine", "demo")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert find_model("mine") == Path("mine")


@pytest.mark.parametrize("name", ["demo", "smollm2", "a/b", "", "-x", "x" * 100, ".."])
def test_no_aliases(name: str) -> None:
    with pytest.raises(ConfigError, match="alias: expected a name"):
        set_alias(name, "demo")


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', "\xff"])
def test_a_damaged_file_is_named(text: str, config: Path) -> None:
    config.mkdir(parents=True)
    path = config / "aliases.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=f"{path}: expected a JSON object of name to model"):
        read_aliases()


def test_a_folder_that_cannot_be_written(config: Path) -> None:
    config.parent.write_text("a file")
    with pytest.raises(ConfigError, match="cannot be written: .*; let MONOLANE_CONFIG name an"):
        set_alias("py", "demo")
