"""The command line: one file per command, whose imports wait until the command runs.

stdout carries the answer alone; everything about it goes to stderr. Exit code 0, 1 for a failure,
2 for wrong usage, 130 after Ctrl-C.
"""

from typing import TYPE_CHECKING

from monolane.cli._app import main

if TYPE_CHECKING:
    from monolane.cli._app import app

__all__ = ["app", "main"]


def __getattr__(name: str) -> object:
    if name == "app":  # every command, made when asked for
        from monolane.cli import _app

        return _app.app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
