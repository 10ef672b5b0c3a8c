"""The delay, brought in step by step: the one place where the two exchanges are mixed.

Switching the delay on at once breaks a trained model: every stream loses what the others said in
the last layers. So each module's exchange is, for a while,

    (1 - share) * (sum over all lanes, at once)  +  share * (what the delayed rule gives)

with a share that goes from 0 to 1. At 0 the model is the dense one, at 1 the plain Laneformer with
this delay: nothing of the mixing is left, and the weights are exported as they are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from torch import Tensor, nn

from monolane.hf import LaneformerForCausalLM

Order = Literal["together", "from_top", "from_bottom", "at_once"]


class MixedReduce(nn.Module):
    """An exchange between "all at once" (share 0) and ``rule``, the delayed one (share 1)."""

    def __init__(self, rule: nn.Module) -> None:
        super().__init__()
        self.rule = rule
        self.share = 0.0

    def forward(self, o_LBTD: Tensor, late_LBTD: Tensor | None) -> Tensor:
        """Return what each lane adds to its stream, [L, B, T, D] or [1, B, T, D]."""
        if self.share == 1:
            return self.rule(o_LBTD, late_LBTD)
        now_1BTD = o_LBTD.sum(0, keepdim=True)
        if self.share == 0:
            return now_1BTD
        return now_1BTD.lerp(self.rule(o_LBTD, late_LBTD), self.share)


def layer_share(order: Order, layer: int, layers: int, progress: float) -> float:
    """Return the share of one layer when ``progress``, 0 to 1, of the annealing is done.

    ``together``: all layers alike. ``from_top``: one layer after the other, the last layer first;
    ``from_bottom``: the first layer first. ``at_once``: every layer from the start.
    """
    if order == "at_once":
        return 1.0
    if order == "together":
        return min(max(progress, 0.0), 1.0)
    place = layers - 1 - layer if order == "from_top" else layer
    return min(max(progress * layers - place, 0.0), 1.0)


class Annealing:
    """The mixed exchanges of one model, and how far each has gone."""

    def __init__(self, model: LaneformerForCausalLM, order: Order) -> None:
        self._order = order
        self._layers: list[Any] = list(model.model.layers)
        for layer in self._layers:
            layer.attention_reduce = MixedReduce(layer.attention_reduce)
            layer.mlp_reduce = MixedReduce(layer.mlp_reduce)

    def advance(self, progress: float) -> None:
        """Set the shares for ``progress``, 0 (the dense model) to 1 (the delayed one)."""
        for i, layer in enumerate(self._layers):
            share = layer_share(self._order, i, len(self._layers), progress)
            layer.attention_reduce.share = layer.mlp_reduce.share = share

    def end(self) -> None:
        """Put the plain exchanges back."""
        for layer in self._layers:
            layer.attention_reduce = layer.attention_reduce.rule
            layer.mlp_reduce = layer.mlp_reduce.rule

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each layer, first to last."""
        return tuple(layer.attention_reduce.share for layer in self._layers)


@contextmanager
def annealed(model: LaneformerForCausalLM, order: Order) -> Iterator[Annealing]:
    """Mix the exchanges of ``model`` inside the block; afterwards it is plain again."""
    annealing = Annealing(model, order)
    annealing.advance(0.0)
    try:
        yield annealing
    finally:
        annealing.end()
