"""How lanes hear each other in the variants that no Laneformer's config.json can describe."""

from collections.abc import Callable
from typing import cast

from torch import Tensor, nn

from monolane.hf import LaneformerForCausalLM, LaneReduce


class Naive(nn.Module):
    """All outputs come late, a lane's own among them: the first layers add nothing to the stream.

    So all streams are one, and the outputs of the last layers are never heard.
    """

    def __init__(self, rule: LaneReduce) -> None:
        super().__init__()

    def forward(self, o_LBTD: Tensor, late_LBTD: Tensor | None) -> Tensor:
        """Return what each lane adds to its stream, [1, B, T, D]."""
        return (o_LBTD * 0 if late_LBTD is None else late_LBTD).sum(0, keepdim=True)


class Unscaled(nn.Module):
    """The rule of the Laneformer, but a lane that hears nobody adds its output as it is."""

    def __init__(self, rule: LaneReduce) -> None:
        super().__init__()
        self.rule = rule

    def forward(self, o_LBTD: Tensor, late_LBTD: Tensor | None) -> Tensor:
        """Return what each lane adds to its stream, [L, B, T, D]."""
        heard: Tensor = o_LBTD if late_LBTD is None else self.rule(o_LBTD, late_LBTD)
        return heard


RULES: dict[str, Callable[[LaneReduce], nn.Module]] = {
    "naive 2": Naive,
    "delay 2, unscaled": Unscaled,
}


def apply_rule(model: LaneformerForCausalLM, variant: str) -> None:
    """Give ``model`` the exchanges of ``variant``, where it has its own."""
    rule = RULES.get(variant)
    if rule is None:
        return
    for layer in model.model.layers:
        for name in ("attention_reduce", "mlp_reduce"):
            setattr(layer, name, rule(cast(LaneReduce, getattr(layer, name))))
