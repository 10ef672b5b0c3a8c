"""Each cell of the tables of docs/families.md names a test, and pytest finds each of them."""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from monolane.model.families import FAMILIES

from .conftest import _NEEDED

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "families.md"
SECTION = "## The test behind each cell"
NONE = ("no such files", "no such dtype", "not read yet")
COLUMNS = 5  # of the table of families, behind the family and its model_type


def tables() -> list[list[list[str]]]:
    """The tables of the section: rows of cells, without their heads."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n{SECTION}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    rows = [[line.strip("|").split("|") for line in block.splitlines()[2:]] for block in blocks]
    return [[[cell.strip() for cell in row] for row in block] for block in rows]


def named() -> dict[str, set[str]]:
    """What each row names: its family or format -> ids as pytest has them."""
    forms, families, formats = tables()
    form = {mark: test.strip("`") for mark, test in forms}
    found: dict[str, set[str]] = {}
    for name, kind, *cells in families:
        assert len(cells) == COLUMNS, name
        ids = {fill(form, cell) for cell in cells if cell not in NONE}
        assert ids, name
        found[f"{name} {kind}"] = ids
    for name, *cells in formats:
        assert len(cells) == 3, name
        found[name] = {fill(form, cell) for cell in cells if cell not in NONE}
    return found


def fill(form: dict[str, str], cell: str) -> str:
    """The test that a cell names by a mark and a case."""
    mark, _, case = cell.partition(" ")
    assert mark in form, f"{cell!r}: expected one of {sorted(form)} before the case"
    return form[mark].replace("CASE", case.strip("`"))


def test_every_family_has_a_row() -> None:
    _, families, _ = tables()
    kinds = {kind for row in families for kind in re.findall(r"`(\w+)`", row[1])}
    assert kinds == {kind for family in FAMILIES for kind in family.model_types}


def test_each_cell_names_a_test_that_there_is(request: pytest.FixtureRequest) -> None:
    pytest.importorskip("torch")  # without which pytest finds no test of a family
    pytest.importorskip("transformers")
    wanted = {test for ids in named().values() for test in ids}
    assert len(wanted) > 60
    found = with_groups(item.nodeid for item in request.session.items)
    # What this run of pytest was not asked for; a run of all tests has the rest already.
    files = sorted({test.partition("::")[0] for test in wanted - found})
    if files:
        found |= with_groups(collected(files))
    assert sorted(wanted - found) == []


def with_groups(ids: Iterable[str]) -> set[str]:
    """Also the names of tests without their cases: all of them together."""
    return {name for test in ids for name in (test, test.partition("[")[0])}


def collected(files: list[str]) -> list[str]:
    """The ids of a run of pytest of its own."""
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout[-2000:] + told.stderr[-2000:]
    return [line for line in told.stdout.splitlines() if "::" in line]


def test_tests_that_need_no_extra_are_there() -> None:
    """Those that conftest names: one under another name would be skipped where torch is missing."""
    for package, (_, _, free) in _NEEDED.items():
        assert sorted(free - {path.name for path in (ROOT / "tests" / package).iterdir()}) == []
