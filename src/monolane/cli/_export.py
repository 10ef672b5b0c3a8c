"""``monolane export``: write a model folder that others can load."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from monolane.cli import _options as options


def export(
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            rich_help_panel=options.LOADING,
            help="'demo', 'smollm2', a model folder, a .gguf file, a Hub id, or the folder of a "
            "training run.",
        ),
    ],
    output: options.Output,
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
        typer.Option(
            help="bfloat16, float16 or float32 [default: as it is; quantised matrices of a .gguf "
            "file as float32]."
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(min=0, help="Of a training run: the checkpoint [default: the newest]."),
    ] = None,
    overwrite: options.ReplaceOut = False,
) -> None:
    """Write a model as a folder in Hub layout.

    It has weights, config, tokenizer, card and modeling code. A .gguf file is dequantised; the
    folder's architecture is one that Transformers has itself.
    """
    from monolane._progress import still
    from monolane.model import check_place
    from monolane.sources import find_model

    check_place(output)  # before a model is fetched
    source = find_model(model)
    with still(f"writing {output}"):
        _export(source, output, dtype, step, overwrite)
    sys.stdout.write(f"{output}\n")


def _export(
    source: Path, destination: Path, dtype: str | None, step: int | None, overwrite: bool
) -> None:
    from monolane.model import is_gguf

    if (source / "config.toml").is_file():  # a model folder has config.json
        from monolane.train import export_run

        export_run(source, destination, step=step, dtype=dtype, overwrite=overwrite)
    elif step is not None:
        raise typer.BadParameter(f"{source} is no training run, so it has no steps")
    elif is_gguf(source):
        _export_gguf(source, destination, dtype, overwrite)
    else:
        from monolane.hf import export_hub_layout

        export_hub_layout(source, destination, dtype=dtype, overwrite=overwrite)


def _export_gguf(source: Path, destination: Path, dtype: str | None, overwrite: bool) -> None:
    from monolane.sources import unpack_gguf

    unpack_gguf(source, destination, dtype=dtype, overwrite=overwrite)  # type: ignore[arg-type]
    sys.stderr.write(
        "the numbers are those of the file: what its quantising lost is not in the folder\n"
    )
