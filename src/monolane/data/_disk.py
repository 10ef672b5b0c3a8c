"""What a disk refuses, told in a line: it is full, read-only, not ours, or something is there."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from monolane.errors import MonolaneError

_REFUSALS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.EIO, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG),
}


@contextmanager
def disk_told(folder: Path, kind: type[MonolaneError], again: str) -> Iterator[None]:
    """Turn what a disk refuses into an error of ``kind``; ``again`` says how to go on then."""
    try:
        yield
    except OSError as error:
        if isinstance(error, MonolaneError) or error.errno not in _REFUSALS:
            raise
        where = "" if error.filename is None else f": {error.filename}"
        raise kind(
            f"{folder}: the disk refuses: {error.strerror}{where}; make room or mend it, and "
            f"{again}, or name another folder"
        ) from error
