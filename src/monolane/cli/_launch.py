"""``monolane launch``: train a run config to its end, through crashes and edits of the code."""

from pathlib import Path
from typing import Annotated

import typer

from monolane.cli import _options as options


def launch(
    config: Annotated[
        str, typer.Argument(help="A run config: a TOML file, or the name of a shipped one.")
    ],
    out: Annotated[
        Path,
        typer.Option("--output", "-o", help="Folder of the run; an old one is continued."),
    ],
    settings: options.Settings = None,
    processes: Annotated[
        int, typer.Option(min=1, help="On this machine; on GPUs, one for each.")
    ] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Machines that train together.")] = 1,
    node: Annotated[int, typer.Option(min=0, help="Which of them this is, from 0.")] = 0,
    address: Annotated[
        str, typer.Option(help="host:port of node 0, where there are several.")
    ] = "",
    restarts: Annotated[
        int, typer.Option(min=0, help="In a row without a new checkpoint, then give up.")
    ] = 5,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds to keep the state when asked to stop.")
    ] = 60.0,
    stall: Annotated[
        float,
        typer.Option(
            min=0,
            help="Seconds without a new step, from the first one on, then the processes are "
            "started again.",
        ),
    ] = 1800.0,
) -> None:
    """Train as 'train' does, with restarts, from a snapshot.

    The first launch keeps the package and the config in RUN/snapshot; restarts and later launches
    use these. Why each attempt ended stands in RUN/attempts.
    """
    from monolane.model import check_place

    check_place(out, beside=False)
    from monolane.train import Fleet, RestartPolicy, launch_run

    status = launch_run(
        config,
        out,
        settings or (),
        fleet=Fleet(processes, nodes, node, address),
        policy=RestartPolicy(restarts=restarts, grace=grace, stall=stall),
    )
    raise typer.Exit(status)
