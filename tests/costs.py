"""What tests cost: processor time by file, which a wall clock on a busy machine does not tell.

With --costs pytest ends with a table: seconds of each file, its own process's and those of the
processes that it started and waited for, and when each worker was out of tests. What a fixture of a
module or a session takes counts for the file that asked first, or for the last one where it ends.
"""

import resource
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

FILES, TESTS = 60, 40  # shown, of each the most expensive
LEAST = 0.05  # seconds of a test that is worth keeping


class Costs:
    """Counts in each worker, and shows them all where the tests were started."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._begun = time.monotonic()
        self._own: Counter[str] = Counter()  # seconds, by file
        self._others: Counter[str] = Counter()  # of processes that were started and waited for
        self._tests: Counter[str] = Counter()
        self._ends: dict[str, float] = {}  # seconds since the start, by worker

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        """Importing the files' modules is a cost, too."""
        before = _processor_seconds()
        result = yield
        self._count("collection", before)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Count a test with its fixtures."""
        before = _processor_seconds()
        result = yield
        spent = self._count(item.nodeid.split("::")[0], before)
        if spent > LEAST:
            self._tests[item.nodeid] = spent
        return result

    def pytest_sessionfinish(self) -> None:
        """Send what a worker has counted."""
        if hasattr(self._config, "workeroutput"):
            end = time.monotonic() - self._begun
            counts = [dict(each) for each in (self._own, self._others, self._tests)]
            self._config.workeroutput["costs"] = [*counts, end]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Add what a worker has counted; one that was lost says nothing."""
        if sent := getattr(node, "workeroutput", {}).get("costs"):
            for mine, theirs in zip((self._own, self._others, self._tests), sent, strict=False):
                mine.update(theirs)
            self._ends[node.gateway.id] = sent[-1]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the sums."""
        say = terminalreporter.write_line
        files = self._own + self._others
        own, others = self._own.total(), self._others.total()
        terminalreporter.section(f"processor time: {own:.0f} s, and {others:.0f} s of children")
        for name, spent in files.most_common(FILES):
            say(f"{spent:7.1f} s, {self._others[name]:7.1f} of children: {name}")
        for name, spent in self._tests.most_common(TESTS):
            say(f"{spent:7.1f} s: {name}")
        for name, end in sorted(self._ends.items()):
            say(f"{name} was out of tests after {end:.0f} s")

    def _count(self, name: str, before: tuple[float, float]) -> float:
        own, others = (now - then for now, then in zip(_processor_seconds(), before, strict=True))
        self._own[name] += own
        self._others[name] += others
        return own + others


def _processor_seconds() -> tuple[float, float]:
    """Of this process, and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time(), children.ru_utime + children.ru_stime
