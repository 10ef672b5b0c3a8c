"""Progress where nobody draws a bar: lines, at a rhythm that a log can bear."""

import threading

import pytest

from monolane._progress import QUIET_SECONDS, counted, shown_progress, still


def test_lines_come_first_last_and_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with shown_progress(clock=lambda: now) as report:
        for done in range(101):
            report("reading", done, 100)
            now += QUIET_SECONDS / 40
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"reading: {done} of 100" for done in (0, 40, 80, 100)]


def test_each_piece_of_work_has_its_own_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_progress("bytes", clock=lambda: 0.0) as report:
        for what in ("one", "two", "one", "two", "two"):
            report(what, 1_500_000, 2_000_000)
        report("one", 2_000_000, 2_000_000)
        report("one", 2_000_000, 2_000_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["one: 1.5 of 2.0 MB", "two: 1.5 of 2.0 MB", "one: 2.0 of 2.0 MB"]


def test_steps_are_counted_and_may_be_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    for shown in (True, False):
        with counted("measuring", 2, shown=shown) as step:
            step()
            step()
    assert capsys.readouterr().err.splitlines() == ["measuring: 0 of 2", "measuring: 2 of 2"]


def test_work_without_a_known_end_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    asked = threading.Event()

    def far() -> str:
        if asked.is_set():
            second.set()
        asked.set()
        return "5 MB are here"

    second = threading.Event()
    with still("fetching x", far, every=0.001):
        assert second.wait(60)
    line = capsys.readouterr().err.splitlines()[0]
    assert line == "fetching x: 0 s so far, 5 MB are here"
