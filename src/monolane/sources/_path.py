"""A path as a person gives it."""

from pathlib import Path

from monolane.errors import ModelNotFoundError


def expand_path(given: str | Path) -> Path:
    """Return a path with somebody's home in place of ``~``; ModelNotFoundError if none can be it.

    Python says so with other errors, at the first look: of a home that nobody has, of a name that
    is too long for a file, of a folder that may not be read.
    """
    try:
        path = Path(given).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelNotFoundError(
            f"{given!s:.80}: expected a path to a file or folder, got: {reason}"
        ) from None
    return path
