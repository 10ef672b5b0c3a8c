"""``monolane alias``: a name of one's own for a model."""

import sys
from typing import Annotated

import typer


def alias(
    name: Annotated[str | None, typer.Argument(help="The new name, such as 'coder'.")] = None,
    model: Annotated[str | None, typer.Argument(help="What --model takes.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Forget the name.")] = False,
) -> None:
    """Give a model a name of your own, or list them.

    Every command takes it where it takes a model. With a name alone: what that stands for.
    """
    from monolane.cli._table import print_table
    from monolane.sources import read_aliases, set_alias

    if name is None and not remove:
        print_table(("alias", "model"), [*read_aliases().items()])
    elif name is not None and model is None and remove:
        set_alias(name, None)
    elif name is not None and model is not None and not remove:
        set_alias(name, model)
    elif not remove and (found := read_aliases().get(name or "")) is not None:
        sys.stdout.write(f"{found}\n")
    else:
        raise typer.BadParameter(
            f"expected NAME and MODEL, a NAME that there is, or NAME and --remove, got {name!r:.80}"
        )
