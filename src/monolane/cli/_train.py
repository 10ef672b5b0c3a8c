"""``monolane train``: make the demo model again, or a longer-trained one like it."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def train(
    out: Annotated[Path, typer.Argument(help="Model folder to write; its run lies in OUT.run.")],
    demo: Annotated[
        bool, typer.Option("--demo", help="The demo recipe. The only one so far, so the default.")
    ] = True,
    minutes: Annotated[
        float, typer.Option("--minutes", help="Length of the run, where --steps is not given.")
    ] = 60.0,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Length of the run in steps.")
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", help="Of the initial weights and the order of the data.")
    ] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run of OUT from its last checkpoint.")
    ] = False,
    threads: Annotated[int | None, typer.Option("--threads", help="CPU threads of torch.")] = None,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Use torch.compile (needs a C++ compiler).")
    ] = False,
) -> None:
    """Train the demo Laneformer on the standard library of the running Python.

    Progress goes to stderr, a log and checkpoints to OUT.run; Ctrl-C keeps what has been learnt.
    """
    from monolane.train import train_demo

    try:
        measured = train_demo(
            out,
            minutes=minutes,
            steps=steps,
            seed=seed,
            resume=resume,
            threads=threads,
            compiled=compiled,
        )
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the state is kept: continue with --resume\n")
        raise
    sys.stderr.write(f"held-out bits per byte: {measured.score.bits_per_byte:.3f}\n")
    sys.stdout.write(f"{out}\n")
