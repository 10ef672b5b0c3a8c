"""``monolane tune``: train what goes beside a model."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from monolane.cli import _options as options
from monolane.cli._groups import grouped

tune = typer.Typer(no_args_is_help=True, help="Train what goes beside a model.")
_REPORTED = 50  # steps


@tune.callback()
def _group() -> None:
    """Keep 'heads' a command of its own while it is the only one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """What is learnt from, and how."""

    texts: Annotated[int, typer.Option(min=1, help="Texts to read.")] = 400
    context: Annotated[int, typer.Option("--window", min=2, help="Tokens of a text.")] = 256
    vocabulary: Annotated[int, typer.Option(min=1, help="Tokens that can be drafted.")] = 4096
    inner: Annotated[
        int | None, typer.Option(min=32, help="Width of the block [default: the model's].")
    ] = None
    depth: Annotated[int, typer.Option(min=1, help="Tokens of a draft that are learnt.")] = 4
    steps: Annotated[int, typer.Option(min=1, help="Length of the training.")] = 2000
    places: Annotated[int, typer.Option(min=1, help="Drafts of a step.")] = 256
    learning_rate: Annotated[float, typer.Option(help="Peak.")] = 1e-3
    seed: Annotated[int, typer.Option(min=0, help="Of texts, order and first values.")] = 0


@tune.command("heads")
@grouped()
def tune_heads(
    *,
    model: options.ModelNeeded,
    out: options.Trained,
    text: Annotated[
        Path | None,
        typer.Option(help="Text to learn from [default: what the model says itself]."),
    ] = None,
    learning: Learning,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Of the training [default: all cores].")
    ] = None,
    resume: options.Resume = False,
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.", min=1)] = 200,
    overwrite: options.ReplaceOut = False,
) -> None:
    """Train heads that draft tokens for a model.

    --draft OUTPUT then makes its answers faster. They learn from what the model says to requests
    made of Python's library, or from --text. A killed run is in OUTPUT.run: continue with --resume.
    """
    from monolane._progress import counted
    from monolane.engine import ModelFiles
    from monolane.model import check_place
    from monolane.sources import find_model

    check_place(out)  # before a model is fetched
    ModelFiles.open(find_model(model)).weights()  # before torch is loaded, which takes seconds
    from monolane.tune import HeadsRecipe, train_heads

    given = asdict(learning)
    with options.making_recipe():
        recipe = HeadsRecipe(peak_lr=given.pop("learning_rate"), **given)

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    def report(step: int, loss: float) -> None:
        if (step + 1) % _REPORTED == 0 or step + 1 == learning.steps:
            say(f"step {step + 1}: loss {loss:.4f}")

    with options.training(), counted("reading texts", learning.texts) as count:
        trained = train_heads(
            model,
            out,
            recipe,
            text=text,
            overwrite=overwrite,
            resume=resume,
            save_every=save_every,
            threads=threads,
            report=report,
            read=count,
            say=say,
        )
    for what, shares in (("before", trained.right_before), ("after", trained.right)):
        listed = ", ".join(f"{share:.0%}" for share in shares)
        say(f"held-out drafts {what} training, right by place: {listed}")
    say(f"a drafted token streams {trained.bytes / 1e6:.2f} MB")
    sys.stdout.write(f"{out}\n")
