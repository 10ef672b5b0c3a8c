"""What is logged, on stderr: lines for people, or JSON for programs that collect logs."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from monolane._printable import PrintableFormatter
from monolane.errors import MonolaneError, RequestError

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object a line; docs/deploy.md names its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, with what it has in ``fields``."""
        when = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_to_stderr(level: str = "info", form: str = "text", text: str = _TEXT) -> None:
    """Log from now on as the options say; RequestError for one that is none."""
    if level not in LEVELS:
        raise RequestError(f"--log-level: expected one of {', '.join(LEVELS)}, got {level!r:.80}")
    if form not in FORMATS:
        raise RequestError(f"--log-format: expected one of {', '.join(FORMATS)}, got {form!r:.80}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter(text) if form == "text" else JsonFormatter())
    others = "info" if level == "debug" else level  # libraries have much to say
    logging.basicConfig(level=others.upper(), handlers=[handler])
    logging.getLogger("monolane").setLevel(level.upper())


@contextmanager
def logged_end(form: str) -> Iterator[None]:
    """Have an error that ends the process be a line of the log, where that is JSON."""
    try:
        yield
    except MonolaneError as error:
        if form != "json":
            raise
        logging.getLogger("monolane").error("%s", error)
        sys.exit(2 if isinstance(error, RequestError) else 1)
