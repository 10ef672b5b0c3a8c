"""The stop matcher against a search of the whole text, and against the steps allowed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolane.errors import TextError
from monolane.text import StopStrings

ALPHABET = st.text("ab", min_size=1, max_size=5)
STOPS = st.lists(ALPHABET, max_size=4)
PIECES = st.lists(st.text("abc", max_size=6), max_size=12)


def _naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The first end at which a stop string is complete; there, the longest."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def _held(text: str, stops: list[str]) -> int:
    ends = (size for stop in stops for size in range(len(stop)) if text.endswith(stop[:size]))
    return max(ends, default=0)


@given(stops=STOPS, pieces=PIECES)
def test_any_cutting_gives_what_a_search_gives(stops: list[str], pieces: list[str]) -> None:
    matcher, emitted, seen = StopStrings(stops), "", ""
    for piece in pieces:
        emit, stopped = matcher.push(piece)
        emitted, seen = emitted + emit, seen + piece
        expected, found = _naive(seen, stops)
        assert stopped == (found is not None)
        assert matcher.matched == found
        if found is None:  # exactly the longest end that may become a stop string is held back
            expected = seen[: len(seen) - _held(seen, stops)]
        assert emitted == expected
    assert emitted + matcher.finish() == _naive(seen, stops)[0]


def test_ties_and_overlaps() -> None:
    assert StopStrings(["c", "abc"]).push("xabc") == ("x", True)
    assert StopStrings(["abc", "b"]).push("xabc") == ("xa", True)
    matcher = StopStrings(["\n\n"])
    assert matcher.push("a\n") == ("a", False)
    assert matcher.push("\nb") == ("", True)
    assert matcher.push("more") == ("", True)
    assert matcher.matched == "\n\n"
    assert matcher.finish() == ""


def test_work_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """One look-up per character, and at most one more for each that was taken before."""
    matcher = StopStrings(["a" * 500 + "b", "a" * 499 + "c"])
    lookups = 0

    class Counted(dict[str, int]):
        def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
            nonlocal lookups
            lookups += 1
            return super().get(key, default)

    matcher._next = [Counted(branch) for branch in matcher._next]
    text = ("a" * 700 + "d") * 20
    for char in text:
        matcher.push(char)
    assert lookups <= 2 * len(text) + 1


@pytest.mark.parametrize("stops", [[""], ["a", ""], "ab", [1]])
def test_refused(stops: list[str]) -> None:
    with pytest.raises(TextError, match="none of them empty"):
        StopStrings(stops)
