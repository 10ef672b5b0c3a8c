"""``monolane retrofit``: convert a dense model into a Laneformer."""

import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from monolane.cli import _options as options
from monolane.cli._groups import grouped

if TYPE_CHECKING:
    from monolane.tune import AnnealRecipe


_DISTILLED = (  # options of --distil alone
    *("steps", "order", "objective", "best", "context", "rows", "learning_rate", "seed"),
    *("lora", "resume", "save_every", "device", "precision"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Into which lanes."""

    lanes: Annotated[int, typer.Option(min=1, help="Lanes to deal the heads out to.")] = 8
    delay: Annotated[
        int, typer.Option(min=0, help="Layers until lanes hear each other; 0 is exact.")
    ] = 0
    early: Annotated[
        bool, typer.Option("--early", help="Let the layers before the delay exchange at once.")
    ] = False
    head: Annotated[str, typer.Option(help="auto, vocab_parallel or replicate.")] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How the delayed model is trained back."""

    steps: Annotated[int, typer.Option(help="Length of the training.")] = 500
    order: Annotated[
        str, typer.Option(help="How the delay comes in: together, from_top, from_bottom, at_once.")
    ] = "together"
    objective: Annotated[
        str, typer.Option(help="distil (the source's logits) or finetune (the text).")
    ] = "distil"
    best: Annotated[
        int, typer.Option(help="Next tokens of the source to train towards; 0: all of them.", min=0)
    ] = 64
    context: Annotated[int, typer.Option("--window", help="Tokens of a window of text.")] = 256
    rows: Annotated[int, typer.Option(help="Windows of a step.")] = 8
    learning_rate: Annotated[float, typer.Option(help="Peak.")] = 1e-3
    seed: Annotated[int, typer.Option(help="Of the order of the windows.")] = 0
    lora: Annotated[
        int | None,
        typer.Option(help="Train low-rank updates of this rank alone, not all weights.", min=1),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """Where it is trained, and what a killed run keeps."""

    resume: options.Resume = False
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.", min=1)] = 50
    device: Annotated[str, typer.Option(help="auto, cpu or cuda: where to train.")] = "auto"
    precision: Annotated[
        str, typer.Option(help="auto, float32 or bfloat16: factors of products, on a CPU.")
    ] = "auto"


@grouped()
def retrofit(
    *,
    call: typer.Context,
    model: options.ModelNeeded,
    out: options.Trained,
    shape: Shape,
    distil: Annotated[
        Path | None, typer.Option(help="Text to train the delayed model back on.")
    ] = None,
    training: Training,
    keeping: Keeping,
    overwrite: options.ReplaceOut = False,
) -> None:
    """Convert a dense model into lanes.

    That is exact without a delay, and a starting point with one. A .gguf file is dequantised first.
    --distil trains the delayed model back towards its source on the text of a file or folder; a
    killed run is in OUTPUT.run: continue with --resume.
    """
    given = options.given(call)
    for name in _DISTILLED if distil is None else ():
        if name in given:
            raise typer.BadParameter("only --distil trains: give it too", param_hint=given[name])
    if shape.early and not shape.delay:
        raise typer.BadParameter("without a delay there is none before it", param_hint="--early")
    from monolane.cli._model_folder import model_folder
    from monolane.model import check_place
    from monolane.sources import find_model
    from monolane.tune import HeadName, retrofit_config

    if shape.head not in get_args(HeadName):
        words = ", ".join(get_args(HeadName))
        raise typer.BadParameter(
            f"expected one of {words}, got {shape.head!r}", param_hint="--head"
        )
    check_place(out)  # before a model is fetched
    recipe = None
    if distil is not None:
        from monolane.tune import AnnealRecipe, LoraRecipe

        taught = asdict(training) | {"precision": keeping.precision}
        if (rank := taught["lora"]) is not None:
            taught["lora"] = LoraRecipe(rank=rank, alpha=2.0 * rank)
        with options.making_recipe():
            recipe = AnnealRecipe(
                rows_per_step=taught.pop("rows"), peak_lr=taught.pop("learning_rate"), **taught
            )
    dealt = asdict(shape)
    path = find_model(model)
    retrofit_config(path, **dealt)  # before it is dequantised
    with model_folder(str(path), out, overwrite) as folder:
        if distil is None or recipe is None:
            _convert(folder, out, dealt, overwrite)
        else:
            how = {x: value for x, value in asdict(keeping).items() if x != "precision"}
            how["overwrite"] = overwrite
            with options.training():
                _convert_and_distil(folder, out, dealt, distil, recipe, how)
    sys.stdout.write(f"{out}\n")


def _convert(folder: Path, out: Path, shape: dict[str, Any], overwrite: bool) -> None:
    from monolane._progress import still
    from monolane.tune import retrofit_folder

    with still(f"writing {out}"):
        made = retrofit_folder(folder, out, overwrite=overwrite, **shape)
    if made.kv_head_copies > 1:
        sys.stderr.write(f"each KV head is there {made.kv_head_copies} times, one a lane\n")
    if made.added_inner:
        sys.stderr.write(
            f"the MLP has {made.added_inner} inner units more, of zeros, so that each lane has "
            "as many\n"
        )
    if not made.exact:
        sys.stderr.write(
            "the delay changes what is computed: train the model back, with --distil or "
            "another trainer, before judging it\n"
        )


def _convert_and_distil(
    folder: Path,
    out: Path,
    shape: dict[str, Any],
    text: Path,
    recipe: "AnnealRecipe",
    how: dict[str, Any],
) -> None:
    from monolane._progress import still
    from monolane.cli._model_folder import told_as
    from monolane.model import check_replaceable, writing
    from monolane.tune import retrofit_folder

    def report(step: int, loss: float, share: float) -> None:
        sys.stderr.write(f"step {step + 1}: loss {loss:.4f}, share of the delay {share:.2f}\n")

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    check_replaceable(folder, out, how["overwrite"])  # before anything is converted
    # Beside the output, whose disk must hold it anyway: a system's temporary folder may be memory.
    prefix = f".{out.name}.staging-"
    with writing(out) as parent, tempfile.TemporaryDirectory(dir=parent, prefix=prefix) as name:
        # Both by the source's name, which the card says, whatever that is.
        dense, delayed = (Path(name) / part / folder.name for part in ("teacher", "student"))
        with told_as(folder, dense, delayed):
            # The source's arithmetic, at a dense model's cost.
            with still("dealing out the lanes"):
                retrofit_folder(folder, dense, lanes=1)
                retrofit_folder(folder, delayed, **shape)
            # Torch, which takes seconds to load, is for what can be converted.
            from monolane.tune import distil_folder, keep_freed_memory

            keep_freed_memory()
            healed = distil_folder(dense, delayed, text, out, recipe, report=report, say=say, **how)
    sys.stderr.write(
        f"held-out loss, nats per token: {healed.source:.3f} as the source, {healed.at_once:.3f} "
        f"with the delay at once, {healed.after:.3f} after {recipe.steps} steps\n"
    )
