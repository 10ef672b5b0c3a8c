"""What all commands have in common: where values come from, and how help is laid out."""

import difflib
import sys
from collections.abc import Collection, Iterator
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from monolane import _env
from monolane.cli._names import ALL, HEADS, OTHER_WORDS
from monolane.cli._once import as_now
from monolane.cli._settings import Settings, is_set_elsewhere, variables_of
from monolane.errors import ConfigError

# Typer may bring click itself: its errors are where its own are.
CLICK = sys.modules[typer.BadParameter.__module__]
UsageError: Any = CLICK.UsageError
_NEAR = 0.75  # a word that is so like a command's is one, mistyped
_HELP = {"-h", "--help"}


class Command(TyperCommand):
    """A command: options from variables and files, help in groups, with examples."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Have options filled from variables and the config file where ``args`` does not say."""
        path = path_of(ctx)
        args = as_now(path, self, ctx, args)
        if _env.LAUNCHER.get() == 0:  # a launcher says everything itself, as its run is kept
            self._fill(ctx, path, not _HELP.intersection(args))
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def _fill(self, ctx: Any, path: tuple[str, ...], with_file: bool) -> None:
        options: list[Any] = [x for x in self.params if is_set_elsewhere(x)]
        for option in options:
            option.envvar = variables_of(path, option)
            option.show_envvar = False
        if not with_file:  # a broken file keeps nobody from help
            return
        settings = settings_of(ctx)
        try:
            settings = settings or Settings.read(None)
            settings.check_sections(ALL)
        except ConfigError:
            if path == ("doctor",):  # which tells of it
                return
            raise
        ctx.default_map = settings.values(path, options, inner=ctx.parent.command.commands)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, each group under its own head."""
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                word = parameter.param_type_name == "argument"
                panel = getattr(parameter, "rich_help_panel", None)
                panels.setdefault("Arguments" if word else panel or "Options", []).append(record)
        for name, records in panels.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write examples, and where else options can be set."""
        from monolane.cli._examples import EXAMPLES

        path = path_of(ctx)
        if path in EXAMPLES:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in EXAMPLES[path]))
        if options := [x for x in self.params if is_set_elsewhere(x)]:
            one = max(options[-1].opts, key=len)
            formatter.write_paragraph()
            formatter.write_text(
                f"Each option is a variable, too, as {variables_of(path, options[-1])[-1]} for "
                f"{one}, and a key of [{'.'.join(path)}] in config.toml: docs/settings.md."
            )
        super().format_epilog(ctx, formatter)


class Commands(TyperGroup):
    """A group of commands, which says what a word that is none of them may mean."""

    command_class = Command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, of the whole command line below heads."""
        shown = {name: x for name, x in self.commands.items() if not x.hidden}
        widest = max(map(len, shown))
        for head, names in HEADS.items() if ctx.parent is None else [("Commands", (*shown,))]:
            if listed := [name for name in names if name in shown]:
                with formatter.section(head):
                    most = formatter.width - 6 - widest
                    formatter.write_dl(
                        [(x.ljust(widest), shown[x].get_short_help_str(most)) for x in listed]
                    )


class DefaultGroup(Commands):
    """Runs its first command where the first word is no command's: ``bench -m demo``, ``bench -h``.

    So that command goes without its name.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the name of the first command in front of its arguments."""
        if not args or args[0] not in self.commands:
            word = args[0] if args and not args[0].startswith("-") else ""
            if near := difflib.get_close_matches(word, self.commands, 1, _NEAR):
                ctx.fail(f"expected a command of it, got {args[0]!r}; did you mean {near[0]}?")
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


def path_of(ctx: Any) -> tuple[str, ...]:
    """Return the words that call a command, behind ``monolane``."""
    found: list[str] = []
    while ctx.parent is not None:
        group = ctx.parent.command
        if not (isinstance(group, DefaultGroup) and ctx.info_name == next(iter(group.commands))):
            found.insert(0, OTHER_WORDS.get(ctx.info_name, ctx.info_name))
        ctx = ctx.parent
    return tuple(found)


def every_command(
    group: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any, Collection[str]]]:
    """Yield each command: its words, itself, and the commands whose words begin with its own."""
    first = next(iter(group.commands)) if isinstance(group, DefaultGroup) else ""
    for name, inner in group.commands.items():
        if inner.hidden:
            continue
        words = path if name == first else (*path, name)
        if hasattr(inner, "commands"):
            yield from every_command(inner, words)
        else:
            yield words, inner, group.commands


def settings_of(ctx: Any) -> Settings | None:
    """Return the config file that ``--config`` names, or None."""
    found = ctx.find_root().obj
    return found if isinstance(found, Settings) else None
