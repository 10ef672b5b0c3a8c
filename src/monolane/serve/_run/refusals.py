"""Requests that got an error: all are counted, and a few of them logged.

A log line for each would be an attack of its own: whoever sends a thousand bad requests a second
would fill the disk.
"""

import logging
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter

log = logging.getLogger("monolane.serve")

_SECONDS = 1.0  # between two lines about the same status


class Refusals:
    """Counts errors by their status, in ``registry``, and logs one a second of each."""

    def __init__(
        self,
        registry: CollectorRegistry,
        model_name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counter = Counter(
            "monolane:requests_refused",
            "Requests that got an error, by its status",
            ("model_name", "code"),
            registry=registry,
        )
        self._model_name, self._clock = model_name, clock
        self._due: dict[int, float] = {}  # of the next line about a status
        self._unsaid: dict[int, int] = {}  # errors since the last one

    def note(self, status: int, request_id: str, message: str) -> None:
        """Count an error; called on the event loop."""
        self._counter.labels(self._model_name, str(status)).inc()
        now = self._clock()
        if now < self._due.get(status, 0.0):
            self._unsaid[status] = self._unsaid.get(status, 0) + 1
            return
        self._due[status] = now + _SECONDS
        unsaid = self._unsaid.pop(status, 0)
        more = f" ({unsaid} more since the last line)" if unsaid else ""
        # The message may quote the request: on one line, and no more than tells what was wrong.
        line = ascii(message)[1:-1]
        log.warning("%s refused with %d: %.200s%s", request_id, status, line, more)
