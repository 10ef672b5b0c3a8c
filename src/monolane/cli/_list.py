"""``monolane list``: the models on this disk, whoever keeps them, and whether they run."""

import json
import sys
from typing import TYPE_CHECKING, Any

from monolane.cli import _options as options

if TYPE_CHECKING:
    from monolane.sources import KeptModel


def list(as_json: options.Json = False) -> None:  # noqa: A001  # as the command is called
    """List the models on this disk, and whether they run.

    The names are those that --model takes. Models that Ollama, LM Studio and llama.cpp keep are
    among them. A model runs if its files are whole and of a family and a format that are read; its
    weights are not looked at.
    """
    from monolane.cli._table import print_table
    from monolane.sources import models_on_disk, read_aliases

    rows = [_row(x) for x in models_on_disk()]
    aliases = dict(read_aliases())
    if as_json:
        sys.stdout.write(json.dumps({"models": rows, "aliases": aliases}) + "\n")
        return
    head = ("name", "size", "family", "kept by", "runs")
    told = [
        (x["model"], _size(x["bytes"]), x["family"] or "-", x["keeper"], x["fault"] or "yes")
        for x in rows
    ]
    print_table(head, told)
    if aliases:
        sys.stdout.write("\n")
        print_table(("alias", "model"), [*aliases.items()])


def _row(model: "KeptModel") -> dict[str, Any]:
    family, fault = ("", model.fault) if model.fault else _look(model)
    return {
        "model": model.name,
        "bytes": model.size,
        "family": family,
        "keeper": model.keeper,
        "path": str(model.path),
        "runs": not fault,
        "fault": fault,
    }


def _look(model: "KeptModel") -> tuple[str, str]:
    """Return a model's family, and why it does not run; "" for what is not known, or no reason."""
    from monolane._naming import naming
    from monolane.errors import MonolaneError
    from monolane.model import Checkpoint, Weights, is_gguf, matrix_formats, read_config

    family = ""
    try:
        with naming(model.path):
            if is_gguf(model.path):
                return Weights.open(model.path).config.family, ""
            config = read_config(model.path)
            family = config.family
            checkpoint = Checkpoint.open(model.path)
            if config.quantization is None or config.quantization.packing is None:
                Weights.load(config, checkpoint)
            else:  # to load them would be to unpack them
                matrix_formats(config, checkpoint)
    except MonolaneError as error:
        return family, str(error).replace(f"{model.path}: ", "").replace(f"{model.path}/", "")
    return family, ""


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"
