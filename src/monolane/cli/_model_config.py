"""A model as a plan needs it: its config, without its weights."""

from typing import TYPE_CHECKING, Annotated

import typer

from monolane.cli._options import LOADING

if TYPE_CHECKING:
    from monolane.model import ModelConfig
    from monolane.plan import Place, Plan

PlannedModel = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        rich_help_panel=LOADING,
        help="'demo', 'smollm2', a model folder, a .gguf file, a Hub id, or a shape: "
        "laneformer-2b.",
    ),
]


def told_groups(plan: "Plan") -> str:
    """Return how a plan shares lanes out to workers: "8 groups of 1 lane x 132 workers"."""
    groups = plan.groups
    return (
        f"{groups.count} group{'s' * (groups.count > 1)} of "
        f"{groups.lanes_each} lane{'s' * (groups.lanes_each > 1)} x "
        f"{groups.workers_each} worker{'s' * (groups.workers_each > 1)}"
    )


def planned_model(model: str) -> "tuple[ModelConfig, dict[Place, str] | None]":
    """Return a model's config, and the formats of its matrices where they are quantised."""
    from monolane.model import (
        Blocks,
        Checkpoint,
        Role,
        Weights,
        find_format,
        is_gguf,
        matrix_formats,
        read_config,
    )
    from monolane.plan import NAMES, named_config
    from monolane.sources import find_model

    if model in NAMES:
        return named_config(model), None
    path = find_model(model)
    if not is_gguf(path):
        config = read_config(path)
        if config.quantization is None:
            return config, None
        return config, matrix_formats(config, Checkpoint.open(path))
    weights = Weights.open(path)
    return weights.config, {
        place: find_format(matrix.format).multiplied.name
        for place, matrix in weights.coded()
        if isinstance(matrix, Blocks) and place[0] is not Role.EMBEDDING
    }
