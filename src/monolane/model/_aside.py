"""A folder that appears complete or not at all: written under another name beside it, then renamed.

The name aside lies in the same parent, because a rename is atomic only within one file system.
"""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from monolane.errors import CheckpointError, MonolaneError


def check_replaceable(source: Path, destination: Path, overwrite: bool) -> None:
    """Raise CheckpointError unless ``destination`` is free, or a model folder to be replaced."""
    source, target = source.resolve(), destination.resolve()
    if not target.exists():
        return
    if not target.is_dir():
        raise CheckpointError(
            f"{destination}: expected a folder or nothing, got a file; name another destination"
        )
    if target == source or target in source.parents:
        raise CheckpointError(
            f"{destination}: expected a folder apart from the source, got one that holds it "
            f"({source}); name another destination"
        )
    if not any(target.iterdir()):
        return
    if not overwrite:
        raise CheckpointError(
            f"{destination}: expected no such folder, got one with files in it; name another "
            "destination, or pass overwrite=True (--overwrite)"
        )
    if not (target / "config.json").is_file():
        raise CheckpointError(
            f"{destination}: expected a model folder to overwrite, got one without config.json; "
            "remove it yourself if it may go"
        )


@contextmanager
def writing(destination: Path) -> Iterator[Path]:
    """Give the folder in which ``destination`` will lie, made if it is missing.

    CheckpointError names the destination where the disk refuses anything meanwhile.
    """
    try:
        parent = destination.resolve().parent
        parent.mkdir(parents=True, exist_ok=True)
        yield parent
    except OSError as error:
        if isinstance(error, MonolaneError):
            raise
        reason = error.strerror or error
        where = "" if error.filename is None else f": {error.filename}"
        raise CheckpointError(
            f"{destination}: cannot be written: {reason}{where}; make room, or name another "
            "destination"
        ) from error


@contextmanager
def folder_aside(destination: Path) -> Iterator[Path]:
    """Give a new folder that becomes ``destination`` on success and is removed on failure."""
    with writing(destination):
        target = destination.resolve()
        aside = _sibling(target, "new")
        aside.mkdir()
        try:
            yield aside
            _take_place(aside, target)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise


def _take_place(aside: Path, target: Path) -> None:
    if not target.is_dir() or not any(target.iterdir()):
        aside.replace(target)
        return
    # A folder with files cannot be replaced in one step: between these two renames there is none.
    old = _sibling(target, "old")
    target.replace(old)
    try:
        aside.replace(target)
    except OSError:
        old.replace(target)
        raise
    shutil.rmtree(old)


def _sibling(target: Path, what: str) -> Path:
    return target.with_name(f".{target.name}.{what}-{os.getpid()}-{secrets.token_hex(4)}")
