"""The standard streams, whose faults are messages like those of any file."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from monolane.errors import ConfigError, RequestError

# How a write ends, to stdout or to a file, where there is no room; it does not say where that is.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def open_streams() -> None:
    """Have each standard stream that a shell closed, as ``>&-`` does, be the null device.

    Python has None for it, and would give its number to the next file that is opened.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


@contextmanager
def checked_stdin() -> Iterator[None]:
    """Read stdin in here: RequestError where it is no text."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise RequestError(
            f"stdin: expected text in {error.encoding}, got other bytes: {error.reason}; convert "
            "it, or set PYTHONIOENCODING"
        ) from None


@contextmanager
def checked_stdout() -> Iterator[None]:
    """Run a command in here: ConfigError where its output cannot be written.

    Python would write the last of it after everything else, and end with a traceback if it cannot.
    """
    try:
        yield
    except OSError as error:
        _write_out()
        if error.errno in _NO_ROOM:
            raise _refused(error) from None
        raise
    except SystemExit:  # as every command ends
        _write_out()
        raise


def leave_stdout() -> None:
    """Have nothing more written to where stdout goes, nor tried when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_out() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as `head` does: no failure
        leave_stdout()
    except OSError as error:
        leave_stdout()
        raise _refused(error) from None


def _refused(error: OSError) -> ConfigError:
    return ConfigError(
        f"the output cannot be written: {error.strerror}; make room, or send it to another place"
    )
