"""The list of commands, and the one place where an error becomes a message and an exit code.

A command's file is imported when the command line names it, or when all are to be listed: typer
reads every option of every command that it is given, while a person waits for a first token.
"""

import gc
import sys
from collections.abc import Collection
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from monolane._printable import printable
from monolane._version import __version__
from monolane.cli._streams import checked_stdout, open_streams
from monolane.errors import MonolaneError, RequestError

if TYPE_CHECKING:
    app: typer.Typer

FAILED, WRONG_USAGE = 1, 2  # typer ends with 2 itself
INTERRUPTED = 130  # 128 + SIGINT, as shells report it

# In the order of ``--help``. A file has one function, or one Typer of several, of its own name.
_COMMANDS = (
    "generate", "chat", "serve", "pull", "list", "rm", "alias", "ps", "rank", "key", "verify",
    "export", "quantize", "train", "launch", "sft", "retrofit", "sim", "trace", "doctor",
)  # fmt: skip
_OTHER_WORDS = {"fetch": "pull"}  # not in ``--help``
_GROUPS = ("plan", "data", "tune", "bench", "eval")
_ALL = (*_COMMANDS, *_OTHER_WORDS, *_GROUPS)


class _DefaultGroup(TyperGroup):
    """Runs its first command where the first word is no command's: ``bench demo``, ``bench -h``.

    So that command may have arguments, and goes without its name.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the name of the first command in front of its arguments."""
        if not args or args[0] not in self.commands:
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


def command_line(wanted: Collection[str] = _ALL) -> typer.Typer:
    """Return the command line with the commands and groups of these names."""
    made = typer.Typer(
        name="monolane",
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
    for name in _COMMANDS:
        if name in wanted:
            made.command()(_of_file(name))
    for name, meant in _OTHER_WORDS.items():
        if name in wanted:
            made.command(name, hidden=True)(_of_file(meant))
    for name in _GROUPS:
        if name in wanted:
            made.add_typer(_group(name), name=name)
    return made


def __getattr__(name: str) -> typer.Typer:
    if name == "app":  # every command: for who looks into the command line, or runs it in a test
        made: typer.Typer = globals().setdefault(name, command_line())
        return made
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _of_file(name: str) -> Any:
    return getattr(import_module(f"monolane.cli._{name}"), name)


def _group(name: str) -> typer.Typer:
    if name == "bench":
        from monolane.cli._bench_serve import bench_serve

        group = typer.Typer(cls=_DefaultGroup, help="Time a model on this machine, or a server.")
        group.command("model", epilog=_beside("bench serve", "loads a server"))(_of_file(name))
        group.command("serve")(bench_serve)
    elif name == "eval":
        from monolane.cli._agent_loop import agent_loop
        from monolane.cli._eval import evaluate

        group = typer.Typer(
            cls=_DefaultGroup, help="Evaluate a model or a server, or time an agent's run."
        )
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
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version)
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """Run a command line; errors of ours are one message on stderr, never a traceback.

    The process ends with 0 when done; 2 for wrong usage, which is what typer refuses, and any
    RequestError; 1 for what failed while it ran, any other error of ours; 130 after Ctrl-C.
    """
    open_streams()
    # Modules and a vocabulary are objects that stay. Looking for cycles after each 700 of them, as
    # Python does, was a third of the time to read a vocabulary of 49,152 tokens.
    gc.set_threshold(20_000, *gc.get_threshold()[1:])
    named = set(_ALL).intersection(sys.argv[1:2])  # else help, a completion, or a mistake
    try:
        with checked_stdout():
            command_line(named or _ALL)()
    except RequestError as error:
        _end(error, WRONG_USAGE)
    except MonolaneError as error:
        _end(error, FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(0)


def _end(error: MonolaneError, code: int) -> NoReturn:
    sys.stderr.write(f"monolane: {printable(str(error))}\n")
    sys.exit(code)
