"""The training loop: one step after the other, and a checkpoint whenever losing them would hurt.

No Trainer class of a library: the loop is small, and its whole state (weights, optimiser, step)
is in the checkpoint, so a resumed run ends in the same bits as one that was never stopped.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from monolane.train._checkpoint import Checkpoint
from monolane.train._optimiser import Optimiser
from monolane.train._packing import Packing
from monolane.train._recipe import DemoRecipe
from monolane.train._schedule import Schedule
from monolane.train._vocabulary import UNK

_IGNORED = -100  # the label that the loss leaves out


class Recorder(Protocol):
    """What the loop tells about each step; :class:`Journal` is one."""

    def record(self, step: int, loss: float, rate: float, norm: float, tokens_per_s: float) -> None:
        """Note a finished step."""


@dataclass(frozen=True)
class Outcome:
    """What one step measured: loss in nats per token, gradient norm before clipping."""

    loss: float
    norm: float


class Loop:
    """A model, its optimiser and its data, advanced step by step."""

    def __init__(
        self,
        model: torch.nn.Module,
        recipe: DemoRecipe,
        packing: Packing,
        schedule: Schedule,
        precision: str,
        *,
        compiled: bool = False,
    ) -> None:
        if compiled:
            model.compile(dynamic=False)  # in place: names of parameters stay
        self.model = model
        self.optimiser = Optimiser(model, recipe)
        self._recipe = recipe
        self._packing = packing
        self._schedule = schedule
        self._precision = precision

    def learning_rate(self, index: int) -> float:
        """Return the learning rate of step ``index``."""
        return self._schedule.learning_rate(index)

    def step(self, index: int) -> Outcome:
        """Do step ``index``, counted from 0."""
        self.model.train()
        rows_BC = self._packing.batch(index, self._recipe.rows_per_step)
        if index < self._schedule.long_start:
            rows_BC = rows_BC.reshape(-1, self._recipe.short_context)
        loss = self._backward(rows_BC)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._recipe.clip_norm)
        self.optimiser.step(self._schedule.learning_rate(index))
        return Outcome(loss, float(norm))

    def _backward(self, rows_BC: np.ndarray) -> float:
        """Add up the gradients over pieces of the batch; return the mean loss.

        Eight residual streams make activations large: pieces that stay in the cache are faster.
        """
        piece = max(1, self._recipe.tokens_per_piece // rows_BC.shape[1])
        pieces = [rows_BC[at : at + piece] for at in range(0, len(rows_BC), piece)]
        total = 0.0
        for rows in pieces:
            loss = self._loss(rows) * (len(rows) / len(rows_BC))
            loss.backward()
            total += loss.item()
        return total

    def _loss(self, rows_BC: np.ndarray) -> Tensor:
        ids_BC = torch.from_numpy(rows_BC.astype(np.int64))
        labels_BC = ids_BC.masked_fill(ids_BC == UNK, _IGNORED)
        with torch.autocast("cpu", torch.bfloat16, enabled=self._precision == "bfloat16"):
            loss: Tensor = self.model(input_ids=ids_BC, labels=labels_BC, use_cache=False).loss
        return loss


@dataclass(frozen=True)
class Keeper:
    """Where and how often a run keeps its state, and what it belongs to."""

    folder: Path
    recipe: DemoRecipe
    corpus: str  # digest
    precision: str
    every_seconds: float

    def keep(self, loop: Loop, steps: int, step: int, seconds: float) -> None:
        """Write the checkpoint of a run that has done ``step`` steps."""
        Checkpoint(
            recipe=self.recipe,
            corpus=self.corpus,
            precision=self.precision,
            steps=steps,
            step=step,
            seconds=seconds,
            model=loop.model.state_dict(),
            optimiser=loop.optimiser.state(),
        ).save(self.folder)


def advance(
    loop: Loop, keeper: Keeper, recorder: Recorder, steps: int, start: int, seconds: float
) -> float:
    """Do the steps from ``start`` to ``steps``; return the seconds spent in steps, all told.

    On SIGINT or SIGTERM the current step ends, its state is kept, and KeyboardInterrupt follows.
    """
    kept_at = time.monotonic()
    with _deferred_interrupt() as interrupted:
        for index in range(start, steps):
            began = time.monotonic()
            outcome = loop.step(index)
            spent = time.monotonic() - began
            seconds += spent
            recorder.record(
                index,
                outcome.loss,
                loop.learning_rate(index),
                outcome.norm,
                keeper.recipe.tokens_per_step / spent,
            )
            if interrupted() or time.monotonic() - kept_at >= keeper.every_seconds:
                keeper.keep(loop, steps, index + 1, seconds)
                kept_at = time.monotonic()
            if interrupted():
                raise KeyboardInterrupt
    keeper.keep(loop, steps, steps, seconds)
    return seconds


@contextmanager
def _deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Turn SIGINT and SIGTERM into a flag, so that no step is cut in half."""
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag.is_set  # only the main thread may install handlers
        return

    def raise_flag(number: int, frame: FrameType | None) -> None:
        flag.set()

    before: dict[int, Any] = {
        number: signal.signal(number, raise_flag) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield flag.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
