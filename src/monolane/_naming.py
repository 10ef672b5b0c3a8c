"""The one boundary around what reads a model's files: whatever goes wrong names the file.

Readers check what they read and say what is wrong with it. What nobody thought of is still an error
of the operating system, of NumPy or of Python's own, and says neither which file it was nor that it
was a file at all.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from monolane.errors import CheckpointError, MonolaneError


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn errors of reading ``path`` that are none of ours into CheckpointError, which names it.

    Not all errors: a TypeError or a KeyError is a bug, whose traceback is to be seen.
    """
    try:
        yield
    except MonolaneError:
        raise
    except MemoryError as error:
        said = f": {error}" if str(error) else ""
        raise CheckpointError(
            f"{path}: expected a model that this machine's memory can hold, got no memory{said}; "
            "take a smaller model, or check its config.json"
        ) from error
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: expected a model that can be read, got {type(error).__name__}: {error}; "
            "fetch it again"
        ) from error
