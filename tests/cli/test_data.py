"""``monolane data`` as a user runs it: from files to a corpus, a page, and rows as text."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from .test_commands import run

RECIPE = """
held_out = 0.3
[[sources]]
name = "notes"
kind = "text"
path = "notes"
[tokenizer]
vocabulary = 264
[stages.only]
notes = 1
"""


@pytest.mark.skipif(not find_spec("datatrove"), reason="pip install 'monolane[data]'")
def test_from_files_to_rows(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for number in range(12):
        text = f"Note {number}. " + " ".join(f"word{number}{at}" for at in range(30))
        (tmp_path / f"notes/{number}.txt").write_text(text)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    corpus = tmp_path / "corpus"
    made = run("data", "prepare", tmp_path / "recipe.toml", "-o", corpus, "--processes", 1)
    assert made.returncode == 0, made.stderr
    assert re.search(r"\b1 shard, .* of text to read; about", made.stderr)
    assert "filter: 1 of 1\n" in made.stderr  # no bar where stderr is no terminal
    assert "notes" in made.stdout
    assert "stage only: notes 100 %" in made.stdout

    page = tmp_path / "page.html"
    told = run("data", "report", corpus, "-o", page, "--verify")
    assert told.stdout == made.stdout
    assert page.read_text().startswith("<!doctype html>")

    shown = run("data", "show", corpus, "--length", 64, "--count", 3)
    assert shown.stdout.count("==== row ") == 3
    assert "---- document" in shown.stdout
    assert "word" in shown.stdout

    large = tmp_path / "large.toml"
    large.write_text(RECIPE.replace("264", "9000"))
    for arguments, code, message in (
        (("prepare", tmp_path / "recipe.toml", corpus), 1, "expected no folder there yet"),
        (("show", corpus, "--stage", "late"), 2, "--stage: expected one of only, got 'late'"),
        (("report", tmp_path), 1, "expected a prepared corpus with corpus.json"),
        (
            ("prepare", tmp_path / "none.toml", tmp_path / "x"),
            1,
            "expected a TOML file, found none",
        ),
        (("prepare", large, tmp_path / "x"), 1, "enough distinct pieces for 9000 tokens"),
    ):
        failed = run("data", *arguments)
        assert failed.returncode == code
        assert "resource_tracker" not in failed.stderr
        assert message in failed.stderr
        assert "Traceback" not in failed.stderr
