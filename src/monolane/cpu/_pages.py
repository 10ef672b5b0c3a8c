"""Pages of mapped files that have been read for the last time."""

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt


def release_pages(array: npt.NDArray[Any]) -> None:
    """Stop counting an array's pages to this process, if it lies in a read-only mapping of a file.

    They stay in the page cache, so a later read of the array finds the same bytes there. Any other
    array keeps its pages, since what is not in a file would be lost.
    """
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if not isinstance(owner, mmap.mmap) or not memoryview(owner).readonly:
        return
    if not array.flags.c_contiguous:
        return
    start = np.frombuffer(owner, np.uint8).ctypes.data
    first = array.ctypes.data - start
    begin = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE  # pages that it has to itself
    end = (first + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if begin < end:
        owner.madvise(mmap.MADV_DONTNEED, begin, end - begin)
