"""A folder that appears complete or not at all: written under another name beside it, then renamed.

The name aside lies in the same parent, because a rename is atomic only within one file system.
"""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from monolane.errors import CheckpointError, MonolaneError

# How a write ends where there is no room.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_place(destination: Path, *, beside: bool = True) -> None:
    """Raise CheckpointError where no folder can be written, as far as one can see; make nothing.

    ``beside``: other files go beside it, as all of it does until it is whole.
    """
    try:
        target = destination.resolve()
        if target.exists() and not target.is_dir():
            raise CheckpointError(
                f"{destination}: expected a folder or nothing, got a file; name another destination"
            )
        import tempfile  # which a first token does without

        near = next(folder for folder in target.parents if folder.exists())
        places = [target] if target.exists() else [near]
        for folder in {near, *places} if beside else places:
            try:
                tempfile.TemporaryFile(dir=folder).close()
            except OSError as error:
                error.filename = str(folder)  # not that of our try
                raise
    except OSError as error:
        if isinstance(error, MonolaneError):
            raise
        raise _refused(destination, error) from None


def check_replaceable(source: Path, destination: Path, overwrite: bool) -> None:
    """Raise CheckpointError unless ``destination`` is free, or a model folder to be replaced."""
    check_place(destination)
    source, target = source.resolve(), destination.resolve()
    if not target.exists():
        return
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
        raise _refused(destination, error) from error


def _refused(destination: Path, error: OSError) -> CheckpointError:
    reason = error.strerror or error
    where = "" if error.filename is None else f": {error.filename}"
    room = "make room, or " if error.errno in NO_ROOM else ""
    return CheckpointError(
        f"{destination}: cannot be written: {reason}{where}; {room}name another destination"
    )


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
