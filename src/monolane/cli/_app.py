"""The list of commands, and the one place where an error becomes a message and an exit code.

A command's file is imported when the command line names it, or when all are to be listed: typer
reads every option of every command that it is given, while a person waits for a first token.
"""

import gc
import sys
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from monolane._printable import printable
from monolane._version import __version__
from monolane.cli._grammar import CLICK, Command, Commands, DefaultGroup, UsageError
from monolane.cli._names import ALL, COMMANDS, GROUPS, OTHER_WORDS
from monolane.cli._settings import Settings
from monolane.cli._streams import checked_stdout, open_streams
from monolane.errors import ConfigError, MonolaneError, RequestError

if TYPE_CHECKING:
    app: typer.Typer

HelpAsked: Any = CLICK.NoArgsIsHelpError
FAILED, WRONG_USAGE = 1, 2  # typer ends with 2 itself
# Command lines that are answered with the list of commands.
_LISTS: tuple[list[str], ...] = ([], ["-h"], ["--help"])
_HELPS = {
    "bench": "Time a model on this machine, or a server.",
    "eval": "Evaluate a model or a server, or time an agent's run.",
}
INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def command_line(wanted: Collection[str] = ALL, *, listed: bool = False) -> typer.Typer:
    """Return the command line with the commands and groups of these names.

    listed  whether somebody wants to see what there is, and no more: commands have no options
            then, nor groups commands, which take as long to read as all files take to import
    """
    made = typer.Typer(
        name="monolane",
        cls=Commands,
        help="A latency-first LLM engine: output tokens per second of one request.",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        add_completion=True,
        # Plain text: rich would read the "[default: the model's]" of our help as its markup and
        # drop it, and its columns cut the names of options at 80 characters.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    made.callback()(_options)
    for name in COMMANDS:
        if name in wanted:
            command = _of_file(name)
            made.command(cls=Command)(_headline(command) if listed else command)
    for name, meant in OTHER_WORDS.items():
        if name in wanted and not listed:
            made.command(name, cls=Command, hidden=True)(_of_file(meant))
    for name in GROUPS:
        if name in wanted:
            group = typer.Typer(help=_help_of(name)) if listed else _group(name)
            for command in group.registered_commands:
                command.cls = Command
            made.add_typer(group, name=name)
    return made


def __getattr__(name: str) -> typer.Typer:
    if name == "app":  # every command: for who looks into the command line, or runs it in a test
        made: typer.Typer = globals().setdefault(name, command_line())
        return made
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _of_file(name: str) -> Any:
    return getattr(import_module(f"monolane.cli._{name}"), name)


def _headline(command: Any) -> Any:
    """Return what a list shows of a command: its name and what it does."""

    def shown() -> None: ...

    shown.__name__, shown.__doc__ = command.__name__, command.__doc__
    return shown


def _help_of(name: str) -> str:
    """Return what a group does; of files that have nothing but commands it is said here."""
    return _HELPS.get(name) or _of_file(name).info.help or ""


def _group(name: str) -> typer.Typer:
    if name == "bench":
        from monolane.cli._bench_serve import bench_serve

        group = typer.Typer(cls=DefaultGroup, help=_HELPS[name])
        group.command("model", epilog=_beside("bench serve", "loads a server"))(_of_file(name))
        group.command("serve")(bench_serve)
    elif name == "eval":
        from monolane.cli._agent_loop import agent_loop
        from monolane.cli._eval import evaluate

        group = typer.Typer(cls=DefaultGroup, help=_HELPS[name])
        other = _beside("eval agent-loop", "says where an agent's time goes")
        group.command("tasks", epilog=other)(evaluate)
        group.command("agent-loop")(agent_loop)
    else:
        group = _of_file(name)
    return group


def _beside(command: str, does: str) -> str:
    """Return the last line of a help that is shown for its group's: what else is there."""
    return f"Another command: 'monolane {command}' {does}; its --help says more."


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


def _options(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Options from this file [default: config.toml of MONOLANE_CONFIG, or of "
            "~/.config/monolane].",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version)
    ] = False,
) -> None:
    if config is not None:
        ctx.obj = Settings.read(config)


def main() -> NoReturn:
    """Run a command line; errors of ours are one message on stderr, never a traceback.

    The process ends with 0 when done; 2 for wrong usage, which is what typer refuses, and any
    RequestError; 1 for what failed while it ran, any other error of ours; 130 after Ctrl-C.
    """
    open_streams()
    # Modules and a vocabulary are objects that stay. Looking for cycles after each 700 of them, as
    # Python does, was a third of the time to read a vocabulary of 49,152 tokens.
    gc.set_threshold(20_000, *gc.get_threshold()[1:])
    try:
        with checked_stdout():
            words = sys.argv[1:]
            made = command_line(_named(words) or ALL, listed=words in _LISTS)
            sys.exit(_run(typer.main.get_command(made)))
    except RequestError as error:
        _end(error, WRONG_USAGE)
    except MonolaneError as error:
        _end(error, FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:  # what nobody thought of: a disk, rights, a name that is too long
        told = f"{error.filename or 'the system'}: expected that to work, got: {error.strerror}"
        _end(ConfigError(f"{told}; check its path, its rights and the disk"), FAILED)


def _named(words: list[str]) -> list[str]:
    """Return the command that is called; none is in a call for help, a completion, a mistake."""
    if words[:1] == ["--config"]:
        words = words[2:]
    elif words[:1] and words[0].startswith("--config="):
        words = words[1:]
    return [word for word in words[:1] if word in ALL]


def _run(command: Any) -> int:
    """Run a command line and return its exit code; what is wrong with it is told."""
    try:
        return command.main(prog_name="monolane", standalone_mode=False) or 0
    except HelpAsked as error:
        error.show()
    except UsageError as error:
        from monolane.cli._mistakes import told

        sys.stderr.write(f"{printable(told(error))}\n")
    except typer.Abort:
        return INTERRUPTED
    return WRONG_USAGE


def _end(error: MonolaneError, code: int) -> NoReturn:
    sys.stderr.write(f"monolane: {printable(str(error))}\n")
    sys.exit(code)
