"""Writing what a long run has found: a disk that refuses is told with what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from monolane.errors import RequestError


@contextmanager
def writing_told(path: Path) -> Iterator[None]:
    """Turn what a disk refuses into a RequestError that says what to do."""
    try:
        yield
    except OSError as error:
        raise RequestError(
            f"{path}: the disk refuses: {error.strerror}; make room or mend it, and go on with the "
            "same command, or give another --output"
        ) from error
