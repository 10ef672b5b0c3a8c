"""Memory that comes back: what a large request took is the system's again when it is over.

glibc keeps what was freed, in an arena for each thread: gigabytes after a few large prompts. And
Python's collector walks over all that was ever imported, 100 ms in which no stream gets a token.
"""

import ctypes
import gc

_MMAP_BYTES = 1 << 20  # larger blocks are the system's own from the beginning, and go back at once
_M_MMAP_THRESHOLD = -3  # glibc's malloc.h
# New objects after which the collector looks for cycles: Python's own number. The command line has
# a larger one while it loads, with which each killed client's 4 kB waited 28 times as long.
_OBJECTS = 700


def settle() -> None:
    """Take all that there is now out of the collector's sight, once the model is loaded."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc; musl's malloc keeps little
        # A fixed threshold: else glibc raises it to 32 MB with the first large block that is freed.
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
    give_back()
    gc.freeze()
    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])


def unsettle() -> None:
    """Let the collector see it again, at the end: else the core reports leaked objects."""
    gc.unfreeze()


def give_back() -> None:
    """Return what is free to the system; takes milliseconds.

    An error keeps the frames that it went through, and with them the body of its request, until
    the collector finds them.
    """
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
