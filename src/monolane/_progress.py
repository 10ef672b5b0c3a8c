"""How far a long piece of work is, on stderr: a bar on a terminal, a plain line now and then else.

Lines and not bars where nobody draws them again: in a log, a pipe, an agent's shell. The first says
what has begun, the last that it is done.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Literal, Protocol

from monolane._printable import printable

if TYPE_CHECKING:
    from rich.console import Console

QUIET_SECONDS = 15.0  # between two lines about one piece of work
Unit = Literal["", "bytes"]


class Report(Protocol):
    """Is told how far a piece of work is; ``note`` says what is being done just now."""

    def __call__(self, what: str, done: int, total: int, note: str = "") -> None: ...


@contextmanager
def shown_progress(
    unit: Unit = "",
    *,
    shown: bool = True,
    clock: Callable[[], float] = time.monotonic,  # s
) -> Iterator[Report]:
    """Give what shows pieces of work, each known by its name; not ``shown``: what shows nothing."""
    from rich.console import Console

    console = Console(stderr=True)
    if not shown:
        yield lambda what, done, total, note="": None
    elif console.is_terminal and not console.is_dumb_terminal:
        with _bars(console, unit) as report:
            yield report
    else:
        yield _Lines(unit, clock)


class _Lines:
    """A line when a piece of work begins, each QUIET_SECONDS, and when it ends."""

    def __init__(self, unit: Unit, clock: Callable[[], float]) -> None:
        self._unit, self._clock = unit, clock
        self._said: dict[str, float] = {}  # when the last line about a piece was written
        self._ended: set[str] = set()

    def __call__(self, what: str, done: int, total: int, note: str = "") -> None:
        now, ends = self._clock(), done >= total
        if what in self._ended:
            return
        if what in self._said and not ends and now - self._said[what] < QUIET_SECONDS:
            return
        self._said[what] = now
        if ends:
            self._ended.add(what)
        far = f"{done:,} of {total:,}"
        if self._unit == "bytes":
            far = f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB"
        _say(f"{printable(what)}: {far}")


@contextmanager
def _bars(console: "Console", unit: Unit) -> Iterator[Report]:
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    far = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), far, TimeRemainingColumn())
    note_column = TextColumn("{task.fields[note]}")
    with Progress(*columns, note_column, console=console, transient=True) as bars:
        known = {}

        def report(what: str, done: int, total: int, note: str = "") -> None:
            if what not in known:
                known[what] = bars.add_task(escape(printable(what)), total=total, note="")
            bars.update(known[what], completed=done, total=total, note=note)

        yield report


@contextmanager
def counted(what: str, steps: int, *, shown: bool = True) -> Iterator[Callable[[], None]]:
    """Show a piece of work of so many steps; gives what moves it on by one."""
    done = count(1)
    with shown_progress(shown=shown) as report:
        report(what, 0, steps)
        yield lambda: report(what, next(done), steps)


@contextmanager
def still(
    what: str, far: Callable[[], str] = lambda: "", every: float = QUIET_SECONDS
) -> Iterator[None]:
    """Say each ``every`` seconds that work goes on of whose end nobody knows; ``far``: and what."""
    began, done = time.monotonic(), threading.Event()

    def tell() -> None:
        while not done.wait(every):
            more = f", {text}" if (text := far()) else ""
            _say(f"{what}: {time.monotonic() - began:,.0f} s so far{more}")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


_log: Callable[[str], None] | None = None


def log_lines(log: Callable[[str], None]) -> None:
    """Have lines go to a log from now on, where a program reads stderr."""
    global _log
    _log = log


def _say(line: str) -> None:
    if _log is not None:
        _log(line)
        return
    with suppress(OSError):  # nobody reads stderr: no reason to stop the work
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
