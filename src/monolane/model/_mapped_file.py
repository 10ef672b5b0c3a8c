"""One file of weights in memory, and whether it is still the one that was checked.

Executors read weights from the mapping itself for as long as they run. A file that is written to
meanwhile gives other numbers than its header speaks of; one that is cut short gives none, and the
processor faults (csrc/memory/file_faults.h tells that, whoever reads). Both are mistakes of whoever
replaces a model: a new file that takes the old one's name changes nothing here.
"""

import contextlib
import mmap
import os
import weakref
from pathlib import Path

from monolane._regular_files import open_regular
from monolane.errors import CheckpointError


class MappedFile:
    """A regular file, mapped to be read: ``path``, its ``size`` in bytes and its ``mapping``.

    The mapping lives as long as any array of it. CheckpointError if it cannot be read, or has fewer
    bytes than ``least``.
    """

    def __init__(self, path: Path, least: int) -> None:
        self.path = path
        try:
            with open_regular(path) as file:
                # Of the file that is open: another may have its name by now.
                self._descriptor = os.dup(file.fileno())
                self._closes = weakref.finalize(self, os.close, self._descriptor)
                self._state = self._look()
                self.size = self._state[0]
                if self.size < least:
                    raise CheckpointError(
                        f"{path}: expected at least {least} bytes, got {self.size}; the file is "
                        "truncated; download or write the file again"
                    )
                self.mapping = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
        _tell_of_faults()
        _wish_huge_pages(self.mapping)

    def check_unchanged(self) -> None:
        """CheckpointError if the file was written to, or cut short, since it was opened."""
        if self._look() != self._state:
            raise CheckpointError(
                f"{self.path}: expected the file that was opened, got one that was written to "
                "since then; load the model again, and replace its files instead of writing to them"
            )

    def _look(self) -> tuple[int, int]:
        about = os.fstat(self._descriptor)
        return about.st_size, about.st_mtime_ns


def _tell_of_faults() -> None:
    """Have a read behind a mapped file's end be told; by default it ends the process in silence."""
    with contextlib.suppress(ImportError):  # reading a model needs no native code
        from monolane._core import tell_of_file_faults

        tell_of_file_faults()


def _wish_huge_pages(mapping: mmap.mmap) -> None:
    """Ask for pages of 2 MB, before the first is read: reads 5 % faster where they are given.

    Linux gives them to a file that it has not cached yet, on file systems with large folios (ext4
    since 6.16, XFS, tmpfs); a wish that is not met costs nothing.
    """
    with contextlib.suppress(AttributeError, OSError):  # another system; a kernel without them
        mapping.madvise(mmap.MADV_HUGEPAGE)
