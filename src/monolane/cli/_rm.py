"""``monolane rm``: remove a model that was fetched from this disk."""

import sys
from typing import Annotated

import typer


def rm(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Names, as 'monolane list' has them.")
    ],
) -> None:
    """Remove models that were fetched from this disk, or aliases.

    name/model of a repository of which GGUF files were fetched removes all of them. Models that
    other programs keep are theirs to remove; the message says how.
    """
    from monolane.sources import remove_model

    for name in models:
        freed, told = remove_model(name)
        sys.stdout.write(f"{told}; {freed / 1e6:,.0f} MB are free now\n")
