"""llama.cpp's ``prompt_progress``: how much of a prompt is read, told while it is."""

import time
from typing import Any

from monolane.serve._run.choice import Choice


class Progress:
    """What was told of each choice of a request.

    The first report of a choice tells what was kept and need not be read, the last that all is
    read; those between come as the passes do, a few a second.
    """

    def __init__(self) -> None:
        self._told: dict[int, int] = {}  # tokens, by the choice's index

    def new(self, choice: Choice) -> list[dict[str, Any]]:
        """Return the reports that are due: none where nothing has changed."""
        read = choice.read
        if read is None:
            return []
        told, reports = self._told.get(choice.index), []
        if told is None:
            told = choice.cached
            reports.append(_report(choice, told))
        if read > told:
            told = read
            reports.append(_report(choice, told))
        self._told[choice.index] = told
        return reports


def _report(choice: Choice, processed: int) -> dict[str, Any]:
    until = choice.first or time.perf_counter_ns()
    return {
        "total": len(choice.prompt_ids),
        "cache": choice.cached,
        "processed": processed,
        "time_ms": max(0, until - choice.admitted) // 1_000_000,
    }
