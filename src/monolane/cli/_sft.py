"""``monolane sft``: fine-tune a model on chats."""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from monolane.cli import _options as options
from monolane.cli._groups import grouped


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """A recipe, and what is otherwise than in it."""

    recipe: Annotated[
        str | None, typer.Option(help="A TOML file or a shipped one, such as laneformer_2b_sft.")
    ] = None
    steps: Annotated[int | None, typer.Option(help="Instead of the recipe's.")] = None
    rows: Annotated[int | None, typer.Option(help="Rows of a step, instead of the recipe's.")] = (
        None
    )
    learning_rate: Annotated[float | None, typer.Option(help="Peak, instead of the recipe's.")] = (
        None
    )
    lora: Annotated[
        int | None,
        typer.Option(help="Train low-rank updates of this rank only, else as the recipe has them."),
    ] = None
    seed: Annotated[int | None, typer.Option(help="Instead of the recipe's.")] = None


@grouped()
def sft(
    *,
    data: Annotated[Path, typer.Argument(help="JSON lines, each with a list of messages.")],
    model: options.ModelNeeded,
    out: options.Trained,
    changes: Changes,
    resume: options.Resume = False,
    overwrite: options.ReplaceOut = False,
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.", min=1)] = 50,
) -> None:
    """Fine-tune a model on chats.

    The loss counts the assistant's tokens, in the model's own template. Progress goes to stderr;
    what was learnt by a killed run is in OUTPUT.run: continue with --resume.
    """
    from monolane.model import check_place

    check_place(out)  # before torch is loaded and a model is fetched
    from monolane.model import open_laneformer
    from monolane.sources import find_model

    source = find_model(model)
    open_laneformer(source, "tune")  # before torch is loaded, which takes seconds
    from monolane.tune import LoraRecipe, SftRecipe, read_recipe, tune_folder

    given = {
        "steps": changes.steps,
        "peak_lr": changes.learning_rate,
        "seed": changes.seed,
        "rows_per_step": changes.rows,
    }
    other: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    chosen = SftRecipe() if changes.recipe is None else read_recipe(changes.recipe)
    with options.making_recipe():  # the recipe itself was whole
        lora = changes.lora
        if lora is not None:
            said = chosen.lora or LoraRecipe(rank=lora, alpha=2.0 * lora)
            scale = said.alpha / said.rank  # what another rank leaves as it is
            other["lora"] = dataclasses.replace(said, rank=lora, alpha=scale * lora)
        chosen = dataclasses.replace(chosen, **other)

    with options.training():
        tuned = tune_folder(
            source,
            data,
            out,
            chosen,
            resume=resume,
            overwrite=overwrite,
            save_every=save_every,
            boards=True,
        )
    found = tuned.material
    sys.stderr.write(
        f"{tuned.steps} steps on {found.chats} chats in {len(found.rows)} rows: {found.tokens} "
        f"tokens, {found.spoken} of them the assistant's; too long: {found.dropped} left out, "
        f"{found.cut} cut\n"
    )
    if tuned.adapter is not None:
        sys.stderr.write(f"adapter, in PEFT's layout: {tuned.adapter}\n")
    sys.stdout.write(f"{out}\n")
