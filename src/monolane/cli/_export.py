"""``monolane export``: write a model folder that others can load."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def export(
    model: Annotated[str, typer.Argument(help="'demo', a model folder, or a Hub id.")],
    destination: Annotated[Path, typer.Argument(help="Folder to write.")],
    hub_layout: Annotated[
        bool,
        typer.Option(
            "--hub-layout",
            help="Write a folder that Transformers loads with trust_remote_code=True on a machine "
            "without monolane. The only layout so far, so it is also the default.",
        ),
    ] = True,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="bfloat16, float16 or float32 [default: as it is]."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the destination if it is there.")
    ] = False,
) -> None:
    """Write a model in Hub layout: weights, config, tokenizer, card and modeling code."""
    from monolane.engine import find_model
    from monolane.hf import export_hub_layout

    written = export_hub_layout(find_model(model), destination, dtype=dtype, overwrite=overwrite)
    sys.stdout.write(f"{written}\n")
