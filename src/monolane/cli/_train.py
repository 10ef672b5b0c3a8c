"""``monolane train``: train a Laneformer by a run config, or the demo model by its own recipe."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from monolane.cli import _options as options
from monolane.cli._groups import grouped

_FORECAST = ("world_size", "mfu", "device", "rehearse")  # options of --dry-run alone
_PUBLISHED = 192  # devices that trained the published model
# Options that stand for a field of a run config.
_FIELDS = {"steps": "schedule.steps", "seed": "seed", "threads": "compute.threads"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a dry run forecasts for."""

    world_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --dry-run: number of devices [default: 192, where a step's rows divide, or "
            "else 1].",
        ),
    ] = None
    mfu: Annotated[
        float, typer.Option(help="With --dry-run: share of the device's peak that is reached.")
    ] = 0.25
    device: Annotated[
        str, typer.Option(help="With --dry-run: the device, such as H100 or MI300X.")
    ] = "H100"
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse",
            help="With --dry-run: do one step, too, on tensors without numbers and among pretended "
            "processes, and print its memory, what it sends, and how fast it can be.",
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How long is trained, from where, and by how many threads."""

    minutes: Annotated[
        float, typer.Option(min=0, help="Demo: length of the run without --steps.")
    ] = 60.0
    steps: Annotated[
        int | None, typer.Option(min=1, help="Length of the run: --set schedule.steps=N.")
    ] = None
    seed: Annotated[
        int, typer.Option(help="Of the first weights and the order of the data: --set seed=N.")
    ] = 0
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads of torch: --set compute.threads=N.")
    ] = None
    compiled: Annotated[
        bool, typer.Option("--compile", help="Use torch.compile (on CPUs it needs a C++ compiler).")
    ] = False
    begin_with: Annotated[
        str | None,
        typer.Option(
            "--from", help="Begin with these weights: a model ('demo', a folder) or a run's folder."
        ),
    ] = None


@grouped()
def train(
    *,
    context: typer.Context,
    config: Annotated[
        str,
        typer.Argument(
            help="A run config: a TOML file, or the name of a shipped one (a wrong name lists "
            "them). 'demo': the demo model, from the standard library's source."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder of the run: config, log, checkpoints. For the demo, the model folder to "
            "write; its run lies in OUTPUT.run.",
        ),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", hidden=True)] = False,
    settings: options.Settings = None,
    resume: options.Resume = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print parameters, memory per device, tokens and time; train nothing."
        ),
    ] = False,
    forecast: Forecast,
    run: Run,
) -> None:
    """Train a Laneformer on a prepared corpus.

    On several devices or processes: torchrun --nproc-per-node N -m monolane train CONFIG -o RUN.
    Progress goes to stderr, a log and checkpoints to the run; Ctrl-C keeps what has been learnt.
    """
    given = options.given(context)
    if demo:  # as it was until 0.1; goes away with _once.py
        sys.stderr.write("monolane train: --demo goes away; write 'train demo --output FOLDER'\n")
        if out is not None:
            raise typer.BadParameter(f"expected a folder, got also {config}", param_hint="--demo")
        config, out = "demo", Path(config)
    _refuse(given, config == "demo")
    if out is None and not dry_run:
        raise typer.BadParameter("expected a folder to write, got none", param_hint="--output")
    start = None if run.begin_with is None else _start(run.begin_with)
    from monolane.model import check_place
    from monolane.train import DemoRecipe, kept_settings, load_config
    from monolane.train import forecast as made_forecast

    if config != "demo":
        settings = [*(kept_settings(out) if resume and out else ()), *(settings or ())]
        for name, value in (("steps", run.steps), ("seed", run.seed), ("threads", run.threads)):
            if name in options.given(context, elsewhere=True):
                settings.append(f"{_FIELDS[name]}={value}")
        if run.compiled:
            settings.append("compute.compile=true")
        if start is not None:
            settings.append(f"model.init_from={json.dumps(str(start))}")
    if dry_run and config == "demo":
        length = DemoRecipe(seed=run.seed).run_config(
            Path("corpus"), run.steps or 1000, precision="float32"
        )
        text = made_forecast(length, 1, forecast.mfu).text(timed=False)
        fits = f"as many as fit into {run.minutes:g} minutes on this machine: measured at the start"
        sys.stdout.write(
            f"{text}{'steps':<17}  {fits if run.steps is None else f'{run.steps:,}'}\n"
        )
        return
    planned = None if config == "demo" else load_config(config, settings or ())
    if dry_run:
        assert planned is not None
        world = forecast.world_size or (
            1 if planned.data.rows_per_step % _PUBLISHED else _PUBLISHED
        )
        made = made_forecast(planned, world, forecast.mfu, forecast.device)
        sys.stdout.write(made.text())
        if forecast.rehearse:
            from monolane.train import rehearse

            sys.stdout.write(f"\n{rehearse(planned, world).text(made.memory.total, made.device)}")
        return
    assert out is not None
    check_place(out, beside=planned is None)
    from monolane.train import standard_listeners, train_demo, train_run

    try:
        if planned is None:
            measured = train_demo(
                out,
                minutes=run.minutes,
                steps=run.steps,
                seed=run.seed,
                resume=resume,
                threads=run.threads,
                compiled=run.compiled,
                begin_with=start,
                say=lambda line: sys.stderr.write(f"{line}\n"),
            )
            sys.stderr.write(f"held-out bits per byte: {measured.score.bits_per_byte:.3f}\n")
        else:
            train_run(
                planned,
                out,
                standard_listeners(planned, out),
                resume=resume,
                settings=tuple(settings or ()),
            )
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the state is kept: continue with --resume\n")
        raise
    if os.environ.get("RANK", "0") == "0":
        sys.stdout.write(f"{out}\n")


def _start(name: str) -> Path:
    """Return the run's folder, or the model, to begin with.

    A model is held against its config here, before torch is loaded.
    """
    from monolane.model import open_laneformer
    from monolane.sources import find_model

    found = Path(name) if Path(name).is_dir() else find_model(name)
    if found.is_file() or (found / "config.json").is_file():
        open_laneformer(found, "begin with")
    return found


def _refuse(given: Mapping[str, str], demo: bool) -> None:
    """Refuse the options that this training cannot honour; ``given``: parameter -> its spelling."""
    refused = {}
    if demo:
        refused["settings"] = "the demo has a recipe of its own and takes no settings"
        if "dry_run" in given:
            refused |= dict.fromkeys(_FORECAST, "the demo is trained on this machine's CPU")
        if "steps" in given:
            refused["minutes"] = "--steps says how long the demo trains; give one of the two"
        if "resume" in given:
            kept = "a demo that is resumed keeps its own"
            refused |= {"seed": kept, "begin_with": kept, "minutes": f"{kept} length, or --steps"}
    else:
        refused["minutes"] = "only the demo is trained by the clock: give --steps"
    if "dry_run" not in given:
        refused |= dict.fromkeys(_FORECAST, "it says what to forecast: give --dry-run too")
    elif "resume" in given:
        refused["resume"] = "a dry run forecasts the whole run"
    for name in refused.keys() & given.keys():
        raise typer.BadParameter(refused[name], param_hint=given[name])
