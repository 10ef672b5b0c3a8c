"""``monolane key``: a new API key for ``monolane serve``."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def key(
    file: Annotated[Path, typer.Argument(help="File of hashed keys, for serve --api-keys.")],
    name: Annotated[str, typer.Option(help="Whose key it is.")] = "default",
    priority: Annotated[
        float,
        typer.Option(
            help="Its requests overtake others that came up to so many seconds before; below 0: "
            "they are overtaken."
        ),
    ] = 0,
) -> None:
    """Make an API key; print it once, add its hash to a file."""
    from monolane.serve import add_key

    sys.stdout.write(add_key(file, name, priority) + "\n")
