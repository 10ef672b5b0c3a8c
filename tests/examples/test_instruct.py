"""The instruction-tuning example: how answers are judged, and that its page shows its results."""

import hashlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from monolane.sources import find_model

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "instruct"
ROWS = {  # of the page's table: kind of request
    "parameters of a function: exactly right": "parameters",
    "imports, exactly right": "imports",
    "methods of a class, exactly right": "methods",
    "what a function does: the docstring's words": "explain",
    "write a function: parses, and has the name": "write",
    "complete a function: the whole parses": "complete",
    "the answer ends by itself within 200 tokens": "ended by itself",
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("instruct_run", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize(
    ("kind", "answer", "right"),
    [
        ("write", "def put(self):\n    return 1", True),
        ("write", "def get(self):\n    return 1", False),
        ("write", "def put(self):\n    return 1\nx = 2", False),
        ("write", "def put(self:", False),
        ("complete", "return x + 1", True),
        ("complete", "return x +", False),
        ("complete", "", False),
        ("parameters", " a, b ", True),
        ("parameters", "a, c", False),
    ],
)
def test_an_answer_is_judged_by_what_was_asked(
    script: ModuleType, kind: str, answer: str, right: bool
) -> None:
    wanted = {"write": "def put(self, x): pass", "parameters": "a, b"}.get(kind, "")
    request = "Complete this function.\n\ndef f(x):\n    x += 1"
    assert script.SCORES[kind](answer, wanted, request) is right


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (["--score-only"], "tuned; tune one first"),
        (["--steps", "0"], "--steps: expected 1 or more, got 0"),
    ],
)
def test_a_wish_that_cannot_be_met_ends_before_any_work(
    script: ModuleType,
    wish: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", str(tmp_path / "out"), *wish])
    with pytest.raises(SystemExit, match="2"):
        script.main()
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_page_shows_the_results(results: dict[str, Any]) -> None:
    text = (ROOT / "docs" / "post-training.md").read_text(encoding="utf-8")
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines()]
    shown = {row[0]: row[1:] for row in cells if len(row) == 4}
    for name, kind in ROWS.items():
        expected = [results["demo"][kind], results["tuned"][kind]]
        assert shown[name] == [*expected, results["tuned"].get(f"{kind}, one answer", "")], name
    run = results["run"]
    (steps, tokens), *_ = re.findall(r"([\d,]+) steps of ([\d,]+) tokens", text)
    assert (steps, tokens) == (f"{run['steps']:,}", f"{run['tokens_per_step']:,}")


def test_the_results_are_of_the_demo_that_is_here(results: dict[str, Any]) -> None:
    weights = (find_model("demo") / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == results["run"]["demo"], (
        "run examples/instruct/run.py again: the demo has changed"
    )
