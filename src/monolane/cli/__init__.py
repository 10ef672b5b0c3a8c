"""The command line: one file per command, whose imports wait until the command runs.

stdout carries the answer alone; everything about it goes to stderr. Exit code 0, 1 for a failure,
2 for wrong usage, 130 after Ctrl-C.
"""

from monolane.cli._app import app, main

__all__ = ["app", "main"]
