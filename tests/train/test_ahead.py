"""Rows are read one step ahead, in the order that the run asks for."""

import threading
from typing import Any

import pytest

from monolane.train._ahead import Ahead


def test_the_next_rows_are_read_meanwhile() -> None:
    read: list[tuple[int, bool]] = []
    here, may = threading.current_thread(), threading.Event()

    def rows(first: int) -> Any:
        if threading.current_thread() is not here:
            assert may.wait(60)
        read.append((first, threading.current_thread() is here))
        return first

    ahead = Ahead(rows)
    assert ahead.take(0, 8)[0] == 0
    assert read == [(0, True)]  # the second is begun, and waits
    may.set()
    assert ahead.take(8, 16)[0] == 8
    assert ahead.take(16, None)[0] == 16
    ahead.close()
    assert read == [(0, True), (8, False), (16, False)]


def test_a_run_that_goes_back_reads_anew() -> None:
    ahead = Ahead(lambda first: first)  # type: ignore[arg-type, return-value]
    assert [ahead.take(*one)[0] for one in ((0, 8), (8, 16), (40, 48), (48, None))] == [
        0,
        8,
        40,
        48,
    ]
    ahead.close()


def test_a_fault_comes_with_its_step() -> None:
    def rows(first: int) -> Any:
        if first == 8:
            raise OSError("gone")
        return first

    ahead = Ahead(rows)
    assert ahead.take(0, 8)[0] == 0
    with pytest.raises(OSError, match="gone"):
        ahead.take(8, 16)
    ahead.close()
