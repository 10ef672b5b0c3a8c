"""The optimisers: Muon for the lanes' matrices, AdamW for everything else.

Not ``torch.optim.Muon``: it takes 2-D matrices only, while a Laneformer's weights are stacks
[L, out, in] in which each lane's slice is a matrix of its own, with its own input stream. So Muon
needs no communication where a process holds whole lanes: it works on its own share.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from monolane.errors import ConfigError
from monolane.train._config import Optimizer

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
        assert weight_LOI.grad is not None
        gradient, momentum = _own(weight_LOI.grad), _own(state["momentum"])
        weight_LOI = _own(weight_LOI)
        momentum.lerp_(gradient, 1 - group["momentum"])
        direction = orthogonalise(gradient.lerp(momentum, group["momentum"]))  # Nesterov
        # A semi-orthogonal [o, i] matrix has an RMS of 1/sqrt(max(o, i)).
        scale = _STEP_RMS * max(weight_LOI.shape[-2:]) ** 0.5
        weight_LOI.mul_(1 - group["lr"] * group["weight_decay"])
        weight_LOI.add_(direction, alpha=-group["lr"] * scale)


def _own(tensor: Tensor) -> Tensor:
    """Return this process's share of a sharded tensor, in place; it must hold whole lanes."""
    if not isinstance(tensor, DTensor):
        return tensor
    cut = [one for one in tensor.placements if isinstance(one, Shard) and one.dim != 0]
    if cut:
        raise ConfigError(
            "optimizer.name: expected 'adamw', as the processes do not divide the lanes, got "
            "'muon'; or let parallel.shard divide the number of lanes"
        )
    return tensor.to_local()


class Optimiser:
    """The optimisers of one model behind one step, one rate and one state."""

    def __init__(self, model: torch.nn.Module, config: Optimizer) -> None:
        self._names: dict[Tensor, str] = {
            parameter: name for name, parameter in model.named_parameters()
        }
        self._parts = _build(model, config)
        for part in self._parts:
            _materialise(part)

    def step(self, learning_rate: float) -> None:
        """Apply the gradients at this rate, then drop them."""
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = learning_rate
            part.step()
        self.clear()

    def clear(self) -> None:
        """Drop the gradients."""
        for part in self._parts:
            part.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Return the live state, by ``<parameter>.<slot>``: what a checkpoint saves and fills."""
        return {
            f"{self._names[parameter]}.{slot}": value
            for part in self._parts
            for parameter, slots in part.state.items()
            for slot, value in slots.items()
        }


def _build(model: torch.nn.Module, config: Optimizer) -> list[torch.optim.Optimizer]:
    matrices, tables, scales = [], [], []
    for name, parameter in model.named_parameters():
        if "norm" in name:
            scales.append(parameter)
        elif "layers" in name:
            matrices.append(parameter)
        else:
            tables.append(parameter)  # embeddings and head: rows are looked up, not mixed
    groups = [
        {"params": tables, "weight_decay": config.weight_decay},
        {"params": scales, "weight_decay": 0.0},
    ]
    if config.name == "adamw":
        groups[0]["params"] = tables + matrices
    adamw = torch.optim.AdamW(
        groups, lr=config.peak_lr, betas=(config.beta1, config.beta2), eps=config.eps, fused=True
    )
    if config.name == "adamw":
        return [adamw]
    return [adamw, Muon(matrices, config.peak_lr, config.muon_momentum, config.weight_decay)]


def _materialise(optimizer: torch.optim.Optimizer) -> None:
    """Make the state that the first step would make, so that a checkpoint can be read into it."""
    slots = ("momentum",) if isinstance(optimizer, Muon) else ("exp_avg", "exp_avg_sq")
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if not isinstance(optimizer, Muon):
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            for slot in slots:
                state[slot] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
