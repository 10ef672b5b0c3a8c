"""The list of commands, and the one place where an error becomes a message and an exit code."""

import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from monolane._version import __version__
from monolane.cli._agent_loop import agent_loop
from monolane.cli._bench import bench
from monolane.cli._bench_serve import bench_serve
from monolane.cli._chat import chat
from monolane.cli._data import data
from monolane.cli._doctor import doctor
from monolane.cli._eval import evaluate
from monolane.cli._export import export
from monolane.cli._fetch import fetch
from monolane.cli._generate import generate
from monolane.cli._key import key
from monolane.cli._launch import launch
from monolane.cli._plan import plan
from monolane.cli._quantize import quantize
from monolane.cli._rank import rank
from monolane.cli._retrofit import retrofit
from monolane.cli._serve import serve
from monolane.cli._sft import sft
from monolane.cli._sim import sim
from monolane.cli._trace import trace
from monolane.cli._train import train
from monolane.cli._tune import tune
from monolane.cli._verify import verify
from monolane.errors import MonolaneError, RequestError

FAILED, WRONG_USAGE = 1, 2  # typer ends with 2 itself
INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class _DefaultGroup(TyperGroup):
    """Runs its first command where the first word is no command's: ``bench demo``, ``bench -h``.

    So that command may have arguments, and goes without its name.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the name of the first command in front of its arguments."""
        if not args or args[0] not in self.commands:
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="monolane",
    help="A latency-first LLM engine: output tokens per second of one request.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
for command in (
    generate,
    chat,
    serve,
    rank,
    fetch,
    key,
    verify,
    export,
    quantize,
    train,
    launch,
    sft,
    retrofit,
    sim,
    trace,
    doctor,
):
    app.command()(command)
app.add_typer(plan, name="plan")
app.add_typer(data, name="data")
app.add_typer(tune, name="tune")
benches = typer.Typer(cls=_DefaultGroup, help="Time a model on this machine, or a server.")
benches.command("model")(bench)
benches.command("serve")(bench_serve)
app.add_typer(benches, name="bench")
evals = typer.Typer(cls=_DefaultGroup, help="Evaluate a model or a server, or time an agent's run.")
evals.command("tasks")(evaluate)
evals.command("agent-loop")(agent_loop)
app.add_typer(evals, name="eval")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
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
    try:
        app()
    except RequestError as error:
        _end(error, WRONG_USAGE)
    except MonolaneError as error:
        _end(error, FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(0)


def _end(error: MonolaneError, code: int) -> NoReturn:
    sys.stderr.write(f"monolane: {error}\n")
    sys.exit(code)
