"""The command that a results file names: one that anyone could give, at the repository's root.

Of the standard library alone: scripts on GPUs and on CPUs use it alike.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def shown_command(argv: Sequence[str]) -> str:
    """Return the command line of a script, without where things lie on this machine."""
    # Also where it was started by another path: "python serving.py" in bench.
    script = shown_path(Path(argv[0]).resolve())
    return shlex.join(["python", script, *map(shown_word, argv[1:])])


def shown_word(word: str) -> str:
    """Return a word of a command line; what leads to a place on this machine becomes its name."""
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    path = Path(value)
    if path.is_absolute() or ".." in path.parts:
        value = shown_path(path.resolve())
    return option + equals + value


def shown_path(path: Path) -> str:
    """Return an absolute path as seen from the repository's root, or its last name outside it."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
