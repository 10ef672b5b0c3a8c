"""The run in which a drafter is trained: its folder, and the texts from which it learns."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from monolane.engine import Engine, ModelFiles
from monolane.errors import TextError
from monolane.model import ModelConfig, Weights, check_replaceable
from monolane.sources import find_model
from monolane.train import deferred_interrupt
from monolane.tune._heads_material import Material, gather, given_texts
from monolane.tune._recipe import DrafterRecipe
from monolane.tune._run_state import Keeper, opened_run, weights_digest


@dataclass(frozen=True, slots=True)
class DrafterRun:
    """A run that has read its texts."""

    path: Path  # of the model
    weights: Weights
    context: int  # tokens of a text at most
    material: Material
    folder: Path
    keeper: Keeper
    state: Callable[[], dict[str, Any] | None]  # reads the one to go on from; None: a new run
    count: Callable[[], None]  # to be called after each text that is read


@contextmanager
def drafter_run(
    model: str | Path,
    destination: Path,
    recipe: DrafterRecipe,
    check: Callable[[ModelConfig, str], None],
    *,
    text: Path | None,
    overwrite: bool,
    resume: bool,
    save_every: int,
    threads: int | None,
    read: Callable[[], None],
    say: Callable[[str], None],
) -> Iterator[DrafterRun]:
    """Open a drafter's run and read its texts; the rest as ``train_heads`` has it.

    ``check`` is given the model's config and where it is from, before anything is written.
    """
    path = find_model(model)
    check_replaceable(path, destination, overwrite)
    files = ModelFiles.open(path)
    weights = files.weights()
    check(weights.config, str(path))
    if threads is not None:
        torch.set_num_threads(threads)
    context = min(recipe.context, files.config.max_positions)
    given_RC = None if text is None else _given_rows(files, text, context, recipe.seed)
    facts = {
        "recipe": asdict(recipe),
        "weights": weights_digest(files.weight_files()),
        "texts": None if given_RC is None else hashlib.sha256(given_RC.tobytes()).hexdigest(),
    }
    with (
        opened_run(destination, facts, resume, newer=("weights", "texts")) as run,
        deferred_interrupt() as asked,
    ):
        for line in run.told:
            say(line)

        def count() -> None:
            read()
            if asked():
                raise KeyboardInterrupt

        # "auto" would be a GPU where there is one; drafters draft on the processor.
        with Engine.load(
            path, "cpu", context=context, max_sequences=8, prefix_cache="off"
        ) as engine:
            where = run.folder / "texts"
            material = gather(engine, where, given_RC, recipe.texts, context, recipe.seed, count)
        keeper = Keeper(run.folder, save_every, asked)
        yield DrafterRun(path, weights, context, material, run.folder, keeper, run.state, count)


def _given_rows(files: ModelFiles, text: Path, context: int, seed: int) -> npt.NDArray[np.int32]:
    """Return the texts of a file as rows of a model's tokens; TextError without a tokenizer."""
    tokenizer = files.tokenizer()
    if tokenizer is None:
        raise TextError(f"{files.path}: expected a tokenizer, to turn {text} into tokens")
    return given_texts(text, tokenizer, context, seed)
