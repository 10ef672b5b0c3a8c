"""``monolane tune``: train what goes beside a model."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from monolane.cli import _options as options
from monolane.cli._groups import grouped

if TYPE_CHECKING:
    from monolane.model import ModelConfig

tune = typer.Typer(no_args_is_help=True, help="Train what goes beside a model.")
T = TypeVar("T")
_REPORTED = 50  # steps


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleLearning(Learning):
    """The same of an EAGLE-3 drafter, which learns from whole texts."""

    inner: Annotated[
        int | None, typer.Option(min=32, help="Width of its MLP [default: twice the model's].")
    ] = None
    places: Annotated[int, typer.Option(min=1, help="Texts of a step.")] = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class NextNLearning:
    """What is learnt from, and how."""

    texts: Annotated[int, typer.Option(min=1, help="Texts to read.")] = 400
    context: Annotated[int, typer.Option("--window", min=2, help="Tokens of a text.")] = 256
    vocabulary: Annotated[int, typer.Option(min=1, help="Tokens of the head that are learnt.")] = (
        4096
    )
    depth: Annotated[int, typer.Option(min=1, help="Tokens of a draft that are learnt.")] = 4
    steps: Annotated[int, typer.Option(min=1, help="Length of the training.")] = 2000
    places: Annotated[int, typer.Option(min=1, help="Texts of a step.")] = 2
    learning_rate: Annotated[float, typer.Option(help="Peak.")] = 3e-4
    seed: Annotated[int, typer.Option(min=0, help="Of texts and order.")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The run of a training."""

    text: Annotated[
        Path | None,
        typer.Option(help="Text to learn from [default: what the model says itself]."),
    ] = None
    threads: Annotated[
        int | None, typer.Option(min=1, help="Of the training [default: all cores].")
    ] = None
    resume: options.Resume = False
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.", min=1)] = 200
    overwrite: options.ReplaceOut = False


@tune.command("heads")
@grouped()
def tune_heads(
    *,
    model: options.ModelNeeded,
    out: options.Trained,
    learning: Learning,
    training: Training,
) -> None:
    """Train heads that draft tokens for a model.

    --draft OUTPUT then makes its answers faster. They learn from what the model says to requests
    made of Python's library, or from --text. A killed run is in OUTPUT.run: continue with --resume.
    """
    from monolane.model import check_heads

    found = _look(model, out)
    from monolane.tune import HeadsRecipe, train_heads

    recipe = _recipe(HeadsRecipe, learning)
    check_heads(*found)
    with _trained(learning, training) as told:
        trained = train_heads(model, out, recipe, **told)
    _conclude(out, trained.right_before, trained.right)
    _say(f"a drafted token streams {trained.bytes / 1e6:.2f} MB")


@tune.command("eagle")
@grouped()
def tune_eagle(
    *,
    model: options.ModelNeeded,
    out: options.Trained,
    learning: EagleLearning,
    training: Training,
) -> None:
    """Train an EAGLE-3 drafter for a model.

    The folder has the layout that SpecForge writes.

    --draft OUTPUT then makes its answers faster. It learns from what 'monolane tune heads' learns
    from. The model's streams are read by the reference backend: seconds for each text of a small
    model. A killed run is in OUTPUT.run: continue with --resume.
    """
    from monolane.model import check_eagle

    found = _look(model, out)
    from monolane.tune import EagleRecipe, train_eagle

    recipe = _recipe(EagleRecipe, learning)
    check_eagle(*found)
    with _trained(learning, training, reads=2) as told:
        trained = train_eagle(model, out, recipe, **told)
    _conclude(out, trained.right_before, trained.right)


@tune.command("nextn")
@grouped()
def tune_nextn(
    *,
    model: options.ModelNeeded,
    out: options.Trained,
    learning: NextNLearning,
    training: Training,
) -> None:
    """Train a layer that predicts further ahead, for a Llama.

    The folder has the layout of SGLang's NextN layers.

    --draft OUTPUT then makes its answers faster. It learns from what 'monolane tune heads' learns
    from. A killed run is in OUTPUT.run: continue with --resume.
    """
    from monolane.model import check_nextn

    found = _look(model, out)
    from monolane.tune import NextNRecipe, train_nextn

    recipe = _recipe(NextNRecipe, learning)
    check_nextn(*found)
    with _trained(learning, training) as told:
        trained = train_nextn(model, out, recipe, **told)
    _conclude(out, trained.right_before, trained.right)


def _look(model: str, out: Path) -> "tuple[ModelConfig, str]":
    """Refuse a place or a model before torch is loaded, which takes seconds.

    Returns the model's config, and where it is from.
    """
    from monolane.engine import ModelFiles
    from monolane.model import check_place
    from monolane.sources import find_model

    check_place(out)  # before a model is fetched
    path = find_model(model)
    return ModelFiles.open(path).weights().config, str(path)


def _recipe(kind: Callable[..., T], learning: Learning | NextNLearning) -> T:
    given = asdict(learning)
    with options.making_recipe():
        return kind(peak_lr=given.pop("learning_rate"), **given)


@contextmanager
def _trained(
    learning: Learning | NextNLearning, training: Training, reads: int = 1
) -> Iterator[dict[str, Any]]:
    """Give how a training runs, and what it tells; each text is read so many times."""
    from monolane._progress import counted

    def report(step: int, loss: float) -> None:
        if (step + 1) % _REPORTED == 0 or step + 1 == learning.steps:
            _say(f"step {step + 1}: loss {loss:.4f}")

    with options.training(), counted("reading texts", reads * learning.texts) as count:
        yield asdict(training) | {"report": report, "read": count, "say": _say}


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _conclude(out: Path, before: list[float], after: list[float]) -> None:
    for what, shares in (("before", before), ("after", after)):
        listed = ", ".join(f"{share:.0%}" for share in shares)
        _say(f"held-out drafts {what} training, right by place: {listed}")
    sys.stdout.write(f"{out}\n")
