"""docs/decode-loop.md is the law of csrc's rooms, and names lines that are there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "csrc"
PAGE = ROOT / "docs" / "decode-loop.md"
MOST_ARROWS = 40  # between rooms, so that the picture still fits a head

LINK = re.compile(r"\[`([\w:]+)`\]\(\.\./(csrc/[\w/.]+)#L(\d+)\)")


def table() -> dict[str, set[str]]:
    """Room -> rooms that it may include, from the rows of the page."""
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", PAGE.read_text(), re.MULTILINE)
    rooms = {room for room, _ in rows}
    return {
        room: rooms if allowed.strip() == "all" else set(re.findall(r"\w+", allowed))
        for room, allowed in rows
    }


ALLOWED = table()


def arrows(room: str, source: str) -> set[str]:
    """Return the other rooms that a source includes."""
    found = re.findall(r'^#include "([\w/]+)/[\w.]+"', source, re.MULTILINE)
    return {path.split("/")[0] for path in found} - {room}


def sources(room: str) -> Iterator[Path]:
    for suffix in ("h", "cpp"):
        yield from sorted((CSRC / room).rglob(f"*.{suffix}"))


def test_every_room_has_a_row_and_no_file_lies_outside() -> None:
    assert {p.name for p in CSRC.iterdir() if p.is_dir()} - {"tests"} == set(ALLOWED)
    assert [p.name for p in CSRC.iterdir() if p.suffix in (".h", ".cpp")] == []


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_rooms_include_what_their_row_allows(room: str) -> None:
    for path in sources(room):
        beyond = arrows(room, path.read_text()) - ALLOWED[room]
        assert not beyond, f"{path.relative_to(ROOT)} includes {', '.join(sorted(beyond))}"


def test_the_rows_go_one_way() -> None:
    """A room's row names earlier rooms only, so there is no circle and nothing goes up."""
    order = list(ALLOWED)
    for room in order:
        if room != order[-1]:
            assert ALLOWED[room] <= set(order[: order.index(room)]), room


def test_arrows_are_few() -> None:
    found = {
        (room, to) for room in ALLOWED for p in sources(room) for to in arrows(room, p.read_text())
    }
    assert len(found) <= MOST_ARROWS


def test_includes_name_the_room() -> None:
    """Or the law would not see them."""
    for path in sources("."):
        if "tests" not in path.parts:
            assert not re.search(r'^#include "[^/"]+"', path.read_text(), re.MULTILINE), path


def test_the_check_sees_an_include_upwards() -> None:
    assert arrows("abi", '#include "run/executor.h"\n') - ALLOWED["abi"] == {"run"}


@pytest.mark.parametrize(("name", "path", "line"), LINK.findall(PAGE.read_text()))
def test_named_lines_are_there(name: str, path: str, line: str) -> None:
    said = (ROOT / path).read_text().splitlines()[int(line) - 1]
    assert re.search(rf"\b{name}\b", said), (
        f"{path}:{line} is {said!r}; run: python scripts/mend_line_links.py"
    )
