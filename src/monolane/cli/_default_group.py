"""A group of commands of which one goes without its name, so that it may have arguments."""

from typing import Any

from typer.core import TyperGroup


class DefaultGroup(TyperGroup):
    """Runs its first command where the first word is no command's: ``bench demo``, ``bench -h``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the name of the first command in front of its arguments."""
        if not args or args[0] not in self.commands:
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)
