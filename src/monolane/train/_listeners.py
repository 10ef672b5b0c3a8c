"""Who listens to a run, as its config says: journal, terminal, boards."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from monolane.train._board import TensorBoard, WandB
from monolane.train._config import RunConfig
from monolane.train._journal import Journal
from monolane.train._record import Observer
from monolane.train._run import Listeners
from monolane.train._terminal import Terminal


def standard_listeners(config: RunConfig, run: Path) -> Listeners:
    """Return what makes the observers of a run in folder ``run``, given the steps it has done."""

    def make(start: int) -> Sequence[Observer]:
        made: list[Observer] = [Journal(run, start), Terminal(config.schedule.steps)]
        if config.log.tensorboard:
            made.append(TensorBoard(run, start))
        if config.log.wandb:
            made.append(WandB(run, config.log.wandb, asdict(config)))
        return made

    return make
