"""The optimisers: Muon for the lanes' matrices, AdamW for everything else.

Not ``torch.optim.Muon``: it takes 2-D matrices only, while a Laneformer's weights are stacks
[L, out, in] in which each lane's slice is a matrix of its own, with its own input stream.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from monolane.train._recipe import DemoRecipe

# Coefficients of the quintic Newton-Schulz iteration x <- a x + b (xx')x + c (xx')(xx')x that
# Keller Jordan's Muon (2024) uses: they drive singular values to about 1 in five rounds, trading
# exactness (0.7 to 1.2) for speed.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ROUNDS = 5
# An AdamW step has an RMS of 0.2 to 0.4 (Moonlight, 2025); scaled to 0.2, both share one rate.
_STEP_RMS = 0.2


def orthogonalise(update_LOI: Tensor) -> Tensor:
    """Return, for each matrix of the stack, the nearest semi-orthogonal one, roughly."""
    rows, columns = update_LOI.shape[-2:]
    x = update_LOI.mT if rows > columns else update_LOI  # the short side first: smaller products
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)  # singular values at most 1
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x.mT if rows > columns else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised matrix by matrix, with decoupled weight decay."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            for weight_LOI in group["params"]:
                if weight_LOI.grad is not None:
                    self._update(weight_LOI, group)

    def _update(self, weight_LOI: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight_LOI]
        if not state:
            state["momentum"] = torch.zeros_like(weight_LOI)
        gradient, momentum = weight_LOI.grad, state["momentum"]
        assert gradient is not None
        momentum.lerp_(gradient, 1 - group["momentum"])
        direction = orthogonalise(gradient.lerp(momentum, group["momentum"]))  # Nesterov
        # A semi-orthogonal [o, i] matrix has an RMS of 1/sqrt(max(o, i)).
        scale = _STEP_RMS * max(weight_LOI.shape[-2:]) ** 0.5
        weight_LOI.mul_(1 - group["lr"] * group["weight_decay"])
        weight_LOI.add_(direction, alpha=-group["lr"] * scale)


class Optimiser:
    """The optimisers of one model behind one step, one rate and one state."""

    def __init__(self, model: torch.nn.Module, recipe: DemoRecipe) -> None:
        self._parts = _build(model, recipe)

    def step(self, learning_rate: float) -> None:
        """Apply the gradients at this rate, then drop them."""
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = learning_rate * group.get("rate_scale", 1.0)
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        """Return what a checkpoint must keep."""
        return [part.state_dict() for part in self._parts]

    def load(self, state: list[dict[str, Any]]) -> None:
        """Take over the state of a checkpoint."""
        for part, values in zip(self._parts, state, strict=True):
            part.load_state_dict(values)


def _build(model: torch.nn.Module, recipe: DemoRecipe) -> list[torch.optim.Optimizer]:
    matrices, tables, scales = [], [], []
    for name, parameter in model.named_parameters():
        if "norm" in name:
            scales.append(parameter)
        elif "layers" in name:
            matrices.append(parameter)
        else:
            tables.append(parameter)  # embeddings and head: rows are looked up, not mixed
    betas = (recipe.beta1, recipe.beta2)
    groups = [
        {"params": tables, "weight_decay": recipe.weight_decay},
        {"params": scales, "weight_decay": 0.0},
    ]
    if recipe.optimiser == "adamw":
        groups.append({"params": matrices, "weight_decay": recipe.weight_decay})
        return [torch.optim.AdamW(groups, lr=recipe.peak_lr, betas=betas, fused=True)]
    return [
        torch.optim.AdamW(groups, lr=recipe.peak_lr, betas=betas, fused=True),
        Muon(matrices, recipe.peak_lr, recipe.muon_momentum, recipe.weight_decay),
    ]
