"""``monolane rank``: give this host's cores to a model that another host decodes."""

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from monolane.cli import _options as options


def rank(
    listen: Annotated[
        str, typer.Option("--listen", help="HOST:PORT to be joined at; port 0: any free one.")
    ],
    model: options.Model = "demo",
    key_file: Annotated[
        Path | None,
        typer.Option(
            "--key-file",
            help="File with a key, the same on each host; needed beyond "
            "loopback. 'openssl rand -hex 32' makes one.",
        ),
    ] = None,
) -> None:
    """Serve as a rank of a process that decodes on another host.

    That process names this one's address with --ranks. It needs the same model and the same version
    of monolane. When that process ends or is lost, the next one is served.
    """
    from monolane._naming import naming
    from monolane.cli._streams import log_to_stderr
    from monolane.cpu import serve_rank
    from monolane.engine import ModelFiles
    from monolane.executor_api import read_key
    from monolane.sources import find_model

    log_to_stderr("%(message)s")
    signal.signal(signal.SIGTERM, _end)
    path = find_model(model)
    with naming(path):
        weights = ModelFiles.open(path).weights()

    def ready(address: str) -> None:
        sys.stdout.write(f"rank: {model} at {address}\n")
        sys.stdout.flush()

    serve_rank(weights, listen, read_key(key_file), ready)


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
