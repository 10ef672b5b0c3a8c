"""Transformers' Trainer, with our order of the rows and our learning rate.

The Trainer ends every pass over its data with a step of the rows that are left, be it a single one,
and counts that as a step. So it is given one stream as long as the run: a pass ends inside a step,
and every step has all its rows. Its own schedules begin with a rate of 0, a step without an effect.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset, Sampler, SequentialSampler
from transformers import Trainer

from monolane._schedule import Wsd
from monolane.hf import check_whole
from monolane.tune._material import Row


class RowStream(Dataset[Row]):
    """The first ``length`` rows of one pass after the other; each pass has an order of its own.

    What lies where is a pure function of seed and place: a resumed run reads the same rows.
    """

    def __init__(self, rows: Sequence[Row], length: int, seed: int) -> None:
        self._rows = rows
        self._length = length
        self._seed = seed
        self._pass, self._order = 0, self._ordered(0)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: int) -> Row:
        number, at = divmod(place, len(self._rows))
        if number != self._pass:
            self._pass, self._order = number, self._ordered(number)
        return self._rows[self._order[at]]

    def _ordered(self, number: int) -> npt.NDArray[np.int64]:
        return np.random.default_rng((self._seed, number)).permutation(len(self._rows))


class StreamTrainer(Trainer):
    """Reads its rows in the order that they have, at the rates of ``schedule``."""

    lr_scheduler: Any  # which Transformers leaves without a type

    def __init__(self, schedule: Wsd, **options: Any) -> None:
        super().__init__(**options)
        self._schedule = schedule

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        return SequentialSampler(self.train_dataset if train_dataset is None else train_dataset)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse a checkpoint without a weight, or with another's, where the Trainer warns."""
        check_whole(self.args.output_dir, load_result.missing_keys, load_result.unexpected_keys)

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> Any:
        """Return the schedule as shares of the peak, which is the optimiser's own rate."""
        if self.lr_scheduler is None:
            self.lr_scheduler = LambdaLR(
                self.optimizer if optimizer is None else optimizer,
                lambda step: self._schedule.rate(1.0, step),
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler
