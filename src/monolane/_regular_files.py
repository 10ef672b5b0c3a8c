"""Files that others made, opened so that none of them holds a reader up.

A folder from the Hub, an archive or a clone may hold a pipe, which is waited for as long as nobody
writes to it, or a link to a device that has no end. So files are opened without waiting, and what
was opened must be a regular file: ``stat`` before ``open`` would look at another one.
"""

import errno
import logging
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

log = logging.getLogger("monolane.files")
# Lists, objects, texts and commas of a text of JSON: each takes Python up to some 80 bytes.
MOST_PARTS = 1 << 22
_PART_BYTES = 8  # beyond that, of a text for each of its parts; published vocabularies have 10


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


def check_parts(text: str) -> None:
    """ValueError for a text of JSON that would take far more memory than the text itself.

    "{},{},{}" becomes 24 times as long. What a string holds is counted as well.
    """
    most = max(MOST_PARTS, len(text) // _PART_BYTES)
    found = sum(map(text.count, "[{,")) + text.count('"') // 2
    if found > most:
        raise ValueError(f"expected at most {most} lists, objects, texts and commas, got {found}")


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def is_own_file(source: Path, path: Path) -> bool:
    """Tell whether a file is one of the model folder ``source``; a warning names one that is not.

    False also where there is none.
    """
    if not path.is_file():
        return False
    return _is_inside(source, path)


def own_files(source: Path, path: Path) -> Iterator[Path]:
    """Yield a file of the model folder ``source``, or all files of a folder of it.

    As ``is_own_file``; a folder that is not one of it is not looked into, be it the machine's root.
    """
    if not path.is_dir():
        if is_own_file(source, path):
            yield path
    elif _is_inside(source, path):
        yield from (found for found in sorted(path.rglob("*")) if is_own_file(source, found))


def _is_inside(source: Path, path: Path) -> bool:
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
