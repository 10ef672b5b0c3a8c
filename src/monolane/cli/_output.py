"""Files that a command writes beside its answer: refused before the work, not behind it."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from monolane.errors import ConfigError


def check_output(path: Path | None) -> None:
    """ConfigError if a file cannot be written there, as far as one can see; nothing is made."""
    if path is None:
        return
    with writing_output(path):
        found, is_folder = path.parent.exists(), path.is_dir()
    if not found:
        raise ConfigError(
            f"{path}: expected a folder {path.parent}, got none; make it, or choose another place"
        )
    if is_folder:
        raise ConfigError(f"{path}: expected a file to write, got a folder; name a file in it")
    with writing_output(path):
        if not path.exists():
            tempfile.TemporaryFile(dir=path.parent).close()
        elif not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def check_results(out: Path | None) -> None:
    """The same of a results file, or of the folder that is to hold it."""
    check_output(out / "results.json" if out is not None and out.is_dir() else out)


def write_output(path: Path, text: str) -> None:
    """Write a file; ConfigError if that fails."""
    with writing_output(path):
        path.write_text(text, encoding="utf-8")


@contextmanager
def writing_output(path: Path) -> Iterator[None]:
    """Write a file in here; ConfigError if that fails."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}; choose another place"
        ) from None
