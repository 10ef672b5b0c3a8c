"""docs/model-types.md: which types of Transformers load, as the installed ones say themselves."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("transformers")
SCRIPT = Path(__file__).parents[2] / "scripts" / "model_types.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("model_types", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow  # which imports some two hundred modules
def test_the_page_says_what_loads(script: ModuleType) -> None:
    """Of another version a type may be new, or refused by another field; none may cease to load."""
    of, said = script.stated(script.PAGE.read_text(encoding="utf-8"))
    assert len(said) > 100
    if of == script.installed():
        found = script.rows()
        assert said == found, "run: python scripts/model_types.py"
        assert script.PAGE.read_text(encoding="utf-8") == script.page(found, of)
        return
    loading = [row.kind for row in said if row.said == script.LOADS]
    assert loading
    assert [kind for kind in loading if script.read(kind) != script.LOADS] == []


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("config.json: model_type: expected one of 'llama', got 'x'", "no such family"),
        ("config.json: hidden_act: expected one of 'silu', got 'x'", "refused by `hidden_act`"),
        ("config.json: a_b: c_d: expected 1, got 2", "refused by `a_b.c_d`"),
        ("something else", "refused by `something else`"),
    ],
)
def test_a_refusal_names_the_field(script: ModuleType, message: str, said: str) -> None:
    assert script.refusal(message) == said


def test_a_page_is_read_as_it_was_written(script: ModuleType) -> None:
    found = [script.Row("a", script.LOADS), script.Row("b_c", "refused by `x.y`")]
    assert script.stated(script.page(found, "5.24.0")) == ("5.24.0", found)
