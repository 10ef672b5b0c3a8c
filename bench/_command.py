"""The command that a results file names: one that anyone could give, at the repository's root.

Of no package with a native core: scripts on GPUs and on CPUs use it alike.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from monolane._results import shown_path, shown_word

ROOT = Path(__file__).resolve().parents[1]


def shown_command(argv: Sequence[str]) -> str:
    """Return the command line of a script, without where things lie on this machine."""
    # Also where it was started by another path: "python serving.py" in bench.
    script = shown_path(Path(argv[0]).resolve(), ROOT)
    return shlex.join(["python", script, *(shown_word(word, ROOT) for word in argv[1:])])
