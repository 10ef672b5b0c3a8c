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
            help="File with the key that all ranks share [default: MONOLANE_RANK_KEY, else a new "
            "one, which is printed].",
        ),
    ] = None,
) -> None:
    """Serve as a rank of a process that decodes on another host.

    That process names this one's address with --ranks. It needs the same model and the same version
    of monolane. When that process ends or is lost, the next one is served.
    """
    import secrets  # not at once: it takes as long to import as all that lists need of this file

    from monolane import _env
    from monolane._naming import naming
    from monolane.cli._logs import log_to_stderr
    from monolane.cpu import serve_rank
    from monolane.engine import ModelFiles
    from monolane.executor_api import read_key
    from monolane.sources import find_model

    log_to_stderr(text="%(message)s")
    signal.signal(signal.SIGTERM, _end)
    path = find_model(model)
    with naming(path):
        weights = ModelFiles.open(path).weights()

    given = read_key(key_file)
    key = given or secrets.token_hex(32).encode()

    def ready(address: str) -> None:
        sys.stdout.write(f"rank: {model} at {address}\n")
        if not given:
            sys.stdout.write(f"{_env.RANK_KEY.name}={key.decode()}\n")
        sys.stdout.flush()

    serve_rank(weights, listen, key, ready)


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
