"""Files that others made, opened so that none of them holds a reader up.

A folder from the Hub, an archive or a clone may hold a pipe, which is waited for as long as nobody
writes to it, or a link to a device that has no end. So files are opened without waiting, and what
was opened must be a regular file: ``stat`` before ``open`` would look at another one.
"""

import errno
import logging
import os
import stat
from io import BufferedReader
from pathlib import Path

log = logging.getLogger("monolane.files")


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read its bytes; OSError if there is none, or if it is no regular file."""
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115  # the caller closes it
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "expected a regular file, got a pipe or a device", str(path))


def read_regular(path: Path, most: int) -> bytes:
    """Return the bytes of a file; OSError as ``open_regular``, and for more than ``most``."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= most:
            data = file.read(size + 1)
            if len(data) > size:  # it grows, or does not say how long it is
                data += file.read(most + 1 - len(data))
            if len(data) <= most:
                return data
            size = len(data)
    raise OSError(errno.EFBIG, f"expected at most {most} bytes, got {size}", str(path))


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def is_own_file(source: Path, path: Path) -> bool:
    """Tell whether a file is one of the model folder ``source``; a warning names one that is not.

    False also where there is none.
    """
    if not path.is_file():
        return False
    real = Path(os.path.realpath(path))
    if any(real.is_relative_to(owned) for owned in _owned(source)):
        return True
    log.warning("%s: left out, for it leads out of its folder, to %s", path, real)
    return False


def _owned(source: Path) -> tuple[Path, ...]:
    """Return the folders whose files are a model's own: in the Hub's cache also that of the blobs.

    There a snapshot's files are links, models--NAME/snapshots/REVISION/FILE -> blobs/HASH.
    """
    folder = Path(os.path.realpath(source))
    model = folder.parent.parent
    if folder.parent.name == "snapshots" and model.name.startswith("models--"):
        return folder, model / "blobs"
    return (folder,)
