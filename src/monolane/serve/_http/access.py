"""The line of a request in the log: who asked for what, and what came of it."""

import logging
from typing import Any

from starlette.types import Scope

log = logging.getLogger("monolane.serve")


def log_access(scope: Scope, status: int, seconds: float) -> None:
    """Log one line, without any text of prompt or answer; ``status`` 0: nothing was sent.

    Reads, as of /health and of the page, are of the level debug. So is what is refused, of which
    ``Refusals`` tells without letting anybody fill the log.
    """
    told: dict[str, Any] = scope["monolane.answer"]
    path = scope["raw_path"].decode("latin-1")
    request_id, method = scope["monolane.request_id"], scope["method"]
    client = scope.get("client")
    fields = {
        "request_id": request_id,
        "client": client[0] if client else "",
        "method": method,
        "path": path,
        "status": status,
        "seconds": round(seconds, 4),
        **told,
    }
    if told:
        log.info(
            "%s %s %s: %s, %d choices, %d + %d tokens, first after %.1f ms, %.1f tokens/s",
            *(request_id, method, path, *told.values()),
            extra={"fields": fields},
        )
        return
    level = logging.INFO if method != "GET" and 200 <= status < 400 else logging.DEBUG
    text = "%s %s %s: %d after %.1f ms"
    log.log(level, text, request_id, method, path, status, seconds * 1e3, extra={"fields": fields})
