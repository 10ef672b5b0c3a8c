"""The pictures of docs/architecture.md are drawn from its table, and are the committed ones."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "draw_architecture.py"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_architecture", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["packages.svg", "token.svg"])
def test_the_committed_picture_is_what_the_script_draws(script: ModuleType, name: str) -> None:
    committed = (ROOT / "docs" / "images" / name).read_text(encoding="utf-8")
    assert committed == script.PICTURES[name](), "run: python scripts/draw_architecture.py"
    assert f"](images/{name})" in (ROOT / "docs" / "architecture.md").read_text()


def test_another_table_is_another_picture(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, drawn = script.PAGE.read_text(), script.packages()
    monkeypatch.setattr(script, "PAGE", tmp_path / "architecture.md")
    script.PAGE.write_text(page.replace("model, reference (in the interpreter) |", "model |"))
    assert script.packages() != drawn
    script.PAGE.write_text(page + "\n| `new` | a package without a place | model |\n")
    with pytest.raises(SystemExit, match="give these packages a place in .*: new"):
        script.packages()


def test_small_print_fits_into_its_box(script: ModuleType) -> None:
    lines = re.findall(r"font-size='11'[^>]*>([^<]+)<", script.packages())
    inside = [line for line in lines if line != "one file per command; may import every package"]
    assert max(map(len, inside)) <= script.FITS
    assert "train, (engine, sources)" in inside  # the last line of tune's


def test_no_arrow_crosses_a_box(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(script.PLACES, "text", script.PLACES["plan"])
    with pytest.raises(SystemExit, match=r"the arrow from \w+ to \w+ crosses (plan|text): move it"):
        script.packages()


def test_arrows_that_others_imply_are_left_out(script: ModuleType) -> None:
    table = {"a": (["b", "c"], []), "b": (["c"], ["d"]), "c": ([], []), "d": ([], [])}
    assert list(script.arrows(table)) == [
        ("a", "b", False),
        ("b", "c", False),
        ("b", "d", True),
    ]
