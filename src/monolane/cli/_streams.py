"""The standard streams, whose faults are messages like those of any file."""

import codecs
import errno
import io
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from monolane._printable import PrintableFormatter
from monolane.errors import ConfigError, RequestError

# How a write ends, to stdout or to a file, where there is no room; it does not say where that is.
_DEGRADED = "monolane.degraded"  # the name of our error handler
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
    codecs.register_error(_DEGRADED, _degrade)
    if isinstance(sys.stdout, io.TextIOWrapper):  # stderr escapes what it cannot say by itself
        sys.stdout.reconfigure(errors=_DEGRADED)
    if logging.lastResort is not None:  # what prints warnings where a command sets nothing up
        logging.lastResort.setFormatter(PrintableFormatter())


def _degrade(error: UnicodeError) -> tuple[str | bytes, int]:
    """Escape characters that a terminal's encoding lacks, as \\u2713, rather than end a command.

    Bytes of a file's name that are no text, which Python holds as U+DC80 to U+DCFF, go out as they
    came in: a script may read the name.
    """
    assert isinstance(error, UnicodeEncodeError)
    first = error.object[error.start]
    if "\udc80" <= first <= "\udcff":
        return bytes([ord(first) - 0xDC00]), error.start + 1
    return first.encode("ascii", "backslashreplace").decode("ascii"), error.start + 1


def as_text(typed: str) -> str:
    """Return what a person typed as text where the locale knows no such letter.

    In the locale C, Python reads ``é`` as two bytes that are no ASCII; they are the letter's UTF-8.
    """
    try:
        return typed if typed.isascii() else os.fsencode(typed).decode("utf-8")
    except UnicodeError:  # letters already, or bytes that are no UTF-8
        return typed.encode("utf-8", "replace").decode("utf-8")


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


def print_json(record: dict[str, Any]) -> None:
    """Print an object on one line, its letters as they are where stdout can say all of them."""
    whole = sys.stdout.encoding.lower().replace("-", "") == "utf8"
    sys.stdout.write(json.dumps(record, ensure_ascii=not whole) + "\n")


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
