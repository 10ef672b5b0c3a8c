"""The steps of a training of what drafts, which a stopped run goes on with to the same bits."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from monolane._schedule import Wsd
from monolane.model import Role, Weights
from monolane.tune._heads_material import Material
from monolane.tune._run_state import Gradients, Keeper

_WARM_UP, _DECAY = 0.02, 0.4  # of the steps
LATER = 0.8  # what a token of a draft counts beside the one before it: it is reached less often


class DraftTraining(ABC):
    """One run's state: ``block`` is trained, ``places`` are shown, ``size`` of them in a step."""

    block: nn.Module
    places: npt.NDArray[np.int64]

    def __init__(self, steps: int, size: int, peak_lr: float, seed: int) -> None:
        self._steps, self._size, self._peak_lr, self._seed = steps, size, peak_lr, seed

    @abstractmethod
    def loss(self, places_N: npt.NDArray[np.int64]) -> tuple[Tensor, list[float]]:
        """Return the loss, and of each token of a draft how often it is right."""

    def run(
        self, keeper: Keeper, state: dict[str, Any] | None, report: Callable[[int, float], None]
    ) -> None:
        """Train, from a kept state on if there is one."""
        parameters = [x for x in self.block.parameters() if x.requires_grad]
        optimiser = torch.optim.AdamW(parameters, lr=self._peak_lr, weight_decay=0.0)
        first = 0
        if state is not None:
            self.block.load_state_dict(state["block"])
            optimiser.load_state_dict(state["optimiser"])
            first = int(state["step"])
        schedule = Wsd.of(self._steps, _WARM_UP, _DECAY)
        gradients = Gradients()
        for step in range(first, self._steps):
            for group in optimiser.param_groups:
                group["lr"] = schedule.rate(self._peak_lr, step)
            loss, _ = self.loss(self._order(step))
            optimiser.zero_grad()
            loss.backward()
            if gradients.usable(parameters, step):
                nn.utils.clip_grad_norm_(parameters, 1.0)
                optimiser.step()
            report(step, float(loss.detach()))
            keeper.after(step + 1, step + 1 == self._steps, partial(self._state, optimiser, step))

    def _state(self, optimiser: torch.optim.Optimizer, step: int) -> dict[str, Any]:
        state = {"block": self.block.state_dict(), "optimiser": optimiser.state_dict()}
        return state | {"step": step + 1}

    def _order(self, step: int) -> npt.NDArray[np.int64]:
        """Return the places of a step: an epoch shows each once, by a function of its number."""
        count, size = len(self.places), self._size
        begin = step * size
        epochs = range(begin // count, (begin + size - 1) // count + 1)
        orders = [np.random.default_rng((self._seed, e)).permutation(count) for e in epochs]
        at = begin - epochs[0] * count
        return self.places[np.concatenate(orders)[at : at + size]]


def most_said(material: Material, vocab: int, count: int) -> npt.NDArray[np.int32]:
    """Return the tokens that the model says most, most first; of a small vocabulary all."""
    said_V = np.zeros(vocab)
    np.add.at(said_V, material.best, material.chance)
    return np.argsort(-said_V, kind="stable")[:count].astype(np.int32)


def widened(weights: Weights, role: Role) -> npt.NDArray[np.float32]:
    """Return a matrix outside the layers as floats, whatever it is stored in."""
    coded = weights.quantized.get((role, None))
    if coded is not None:
        return coded.widened()
    return weights.outer[role].astype(np.float32)
