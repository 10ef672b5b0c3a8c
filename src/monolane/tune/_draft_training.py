"""The steps of a training of what drafts, which a stopped run goes on with to the same bits.

Shape legend: N places of a step, D hidden, R drafted vocabulary, V vocabulary, B best.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from monolane._schedule import Wsd
from monolane.errors import ConfigError
from monolane.model import Role, Weights
from monolane.tune._heads_material import Material
from monolane.tune._recipe import DrafterRecipe
from monolane.tune._run_state import Gradients, Keeper

_WARM_UP, _DECAY = 0.02, 0.4  # of the steps
_HELD_OUT = 20  # every so manieth text, at least one
_LATER = 0.8  # what a token of a draft counts beside the one before it: it is reached less often


class DraftTraining(ABC):
    """One run's state: ``block`` is trained, on ``places``, and measured on ``held_out``."""

    block: nn.Module
    places: npt.NDArray[np.int64]
    held_out: npt.NDArray[np.int64]

    def __init__(
        self,
        weights: Weights,
        material: Material,
        recipe: DrafterRecipe,
        tokens_R: npt.NDArray[np.int32],
    ) -> None:
        self._recipe, self._material, self.tokens_R = recipe, material, tokens_R
        self._embedding_VD = widened(weights, Role.EMBEDDING)
        self._row_V = torch.full((weights.config.vocab_size,), -1, dtype=torch.int64)
        self._row_V[torch.from_numpy(tokens_R).long()] = torch.arange(len(tokens_R))
        self.texts_held_out = max(1, len(material.ends) // _HELD_OUT)

    def check_places(self, least: str) -> None:
        """ConfigError if texts are too short, those to learn from or those that are held out."""
        if not len(self.places) or not len(self.held_out):
            raise ConfigError(
                f"texts: expected some with more than {least} tokens to learn from "
                "and to measure on; take more or longer texts"
            )

    @abstractmethod
    def loss(self, places_N: npt.NDArray[np.int64]) -> tuple[Tensor, list[float]]:
        """Return the loss, and of each token of a draft how often it is right."""

    def score(self, logits_NR: Tensor, at_N: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return what is lost [N] against the model at these places, and whether it says so too."""
        rows_NB = self._row_V[torch.from_numpy(self._material.best[at_N]).long()]
        chance_NB = torch.from_numpy(self._material.chance[at_N]) * (rows_NB >= 0)
        logs_NB = functional.log_softmax(logits_NR, dim=1).gather(1, rows_NB.clamp(min=0))
        return -(chance_NB * logs_NB).sum(1), (logits_NR.argmax(1) == rows_NB[:, 0]).float()

    def sum_up(self, lost: list[Tensor]) -> Tensor:
        """Return the loss of a draft, of those of its tokens."""
        loss, weight = torch.zeros(()), 1.0
        for one in lost:
            loss = loss + weight * one
            weight *= _LATER
        return loss

    @torch.no_grad()
    def measure(self) -> list[float]:
        """Return how often a held-out draft's tokens are the model's most probable ones."""
        return [round(share, 4) for share in self.loss(self.held_out)[1]]

    def run(
        self, keeper: Keeper, state: dict[str, Any] | None, report: Callable[[int, float], None]
    ) -> None:
        """Train, from a kept state on if there is one."""
        parameters = [x for x in self.block.parameters() if x.requires_grad]
        optimiser = torch.optim.AdamW(parameters, lr=self._recipe.peak_lr, weight_decay=0.0)
        first = 0
        if state is not None:
            self.block.load_state_dict(state["block"])
            optimiser.load_state_dict(state["optimiser"])
            first = int(state["step"])
        schedule = Wsd.of(self._recipe.steps, _WARM_UP, _DECAY)
        gradients = Gradients()
        for step in range(first, self._recipe.steps):
            for group in optimiser.param_groups:
                group["lr"] = schedule.rate(self._recipe.peak_lr, step)
            loss, _ = self.loss(self._order(step))
            optimiser.zero_grad()
            loss.backward()
            if gradients.usable(parameters, step):
                nn.utils.clip_grad_norm_(parameters, 1.0)
                optimiser.step()
            report(step, float(loss.detach()))
            keeper.after(
                step + 1, step + 1 == self._recipe.steps, partial(self._state, optimiser, step)
            )

    def _state(self, optimiser: torch.optim.Optimizer, step: int) -> dict[str, Any]:
        state = {"block": self.block.state_dict(), "optimiser": optimiser.state_dict()}
        return state | {"step": step + 1}

    def _order(self, step: int) -> npt.NDArray[np.int64]:
        """Return the places of a step: an epoch shows each once, by a function of its number."""
        count, size = len(self.places), self._recipe.places
        begin = step * size
        epochs = range(begin // count, (begin + size - 1) // count + 1)
        orders = [np.random.default_rng((self._recipe.seed, e)).permutation(count) for e in epochs]
        at = begin - epochs[0] * count
        return self.places[np.concatenate(orders)[at : at + size]]


def most_said(material: Material, vocab: int, count: int) -> npt.NDArray[np.int32]:
    """Return the tokens that the model says most, most first; of a small vocabulary all."""
    said_V = np.zeros(vocab)
    np.add.at(said_V, material.best, material.chance)
    return np.argsort(-said_V, kind="stable")[:count].astype(np.int32)


def widened(weights: Weights, role: Role, layer: int | None = None) -> npt.NDArray[np.float32]:
    """Return a matrix, one outside the layers if there is none, as floats."""
    matrix = weights.matrix(role, layer)
    return matrix.astype(np.float32) if isinstance(matrix, np.ndarray) else matrix.widened()
