"""``monolane train``: train a Laneformer by a run config, or the demo model by its own recipe."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer


def train(
    config: Annotated[
        str,
        typer.Argument(
            help="A run config: a TOML file, or the name of a shipped one (a wrong name lists "
            "them). 'demo': the demo model, from the standard library's source."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Argument(
            help="Folder of the run: config, log, checkpoints. For the demo, the model folder to "
            "write; its run lies in OUT.run."
        ),
    ] = None,
    demo: Annotated[
        bool,
        typer.Option("--demo", help="'monolane train --demo OUT' is 'monolane train demo OUT'."),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="section.key=value over the config's; may be given again."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run of OUT from its last checkpoint.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print parameters, memory per device, tokens and time; train nothing."
        ),
    ] = False,
    world_size: Annotated[
        int, typer.Option("--world-size", help="With --dry-run: number of devices.")
    ] = 192,
    mfu: Annotated[
        float,
        typer.Option("--mfu", help="With --dry-run: share of the device's peak that is reached."),
    ] = 0.25,
    device: Annotated[
        str, typer.Option("--device", help="With --dry-run: the device, such as H100 or MI300X.")
    ] = "H100",
    minutes: Annotated[
        float, typer.Option("--minutes", help="Demo: length of the run without --steps.")
    ] = 60.0,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Demo: length of the run in steps.")
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", help="Demo: of the initial weights and the order of the data.")
    ] = 0,
    threads: Annotated[
        int | None, typer.Option("--threads", help="Demo: CPU threads of torch.")
    ] = None,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Demo: use torch.compile (needs a C++ compiler).")
    ] = False,
    begin_with: Annotated[
        str | None,
        typer.Option("--from", help="Demo: begin with the weights of this one, say 'demo' itself."),
    ] = None,
) -> None:
    """Train a Laneformer on a prepared corpus.

    On several devices or processes: torchrun --nproc-per-node N -m monolane train CONFIG OUT.
    Progress goes to stderr, a log and checkpoints to OUT; Ctrl-C keeps what has been learnt.
    """
    if demo:
        config, out = "demo", Path(config)
    if dry_run:
        _print_forecast(config, settings or [], world_size, mfu, device)
        return
    if out is None:
        raise typer.BadParameter("expected the folder to write after the config", param_hint="OUT")
    try:
        if config == "demo":
            _train_demo(out, minutes, steps, seed, resume, threads, compiled, begin_with)
        else:
            _train_run(config, out, settings or [], resume)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the state is kept: continue with --resume\n")
        raise


def _print_forecast(
    config: str, settings: list[str], world_size: int, mfu: float, device: str
) -> None:
    from monolane.train import forecast, load_config

    made = forecast(load_config(config, settings), world_size, mfu, device)
    sys.stdout.write(made.text())


def _train_run(config: str, out: Path, settings: list[str], resume: bool) -> None:
    from monolane.train import load_config, standard_listeners, train_run

    wanted = load_config(config, settings)
    train_run(wanted, out, standard_listeners(wanted, out), resume=resume)
    if os.environ.get("RANK", "0") == "0":
        sys.stdout.write(f"{out}\n")


def _train_demo(
    out: Path,
    minutes: float,
    steps: int | None,
    seed: int,
    resume: bool,
    threads: int | None,
    compiled: bool,
    begin_with: str | None,
) -> None:
    from monolane.engine import find_model
    from monolane.train import train_demo

    measured = train_demo(
        out,
        minutes=minutes,
        steps=steps,
        seed=seed,
        resume=resume,
        threads=threads,
        compiled=compiled,
        begin_with=None if begin_with is None else find_model(begin_with),
    )
    sys.stderr.write(f"held-out bits per byte: {measured.score.bits_per_byte:.3f}\n")
    sys.stdout.write(f"{out}\n")
