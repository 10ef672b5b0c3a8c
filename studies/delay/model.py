"""The models: the project's own Laneformer, its first weights, and its two precisions.

Under one seed every variant begins with the same matrices: those of the dense model, cut where it
has lanes. Products are in bfloat16 with bfloat16 copies of the weights, and the optimiser has the
weights in float32: what `monolane train` does by FSDP. Not autocast, which widens sums, and with
them the lanes' streams, to float32.
"""

import copy
import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from monolane.hf import LaneformerConfig, LaneformerForCausalLM, LaneReduce
from studies.delay.sizes import Size, Variant
from studies.dtp.rules import Naive, Unscaled

_RULES = {"naive": Naive, "unscaled": Unscaled}
MASKS = {"full_attention": None}  # causal, and nothing to be made in each pass


def make_model(
    size: Size, variant: Variant, seed: int, dtype: torch.dtype = torch.float32
) -> LaneformerForCausalLM:
    """Return the model that a run begins with."""
    torch.manual_seed(seed)
    model = _bare(size, variant, 1, dtype)
    if variant.lanes > 1:
        lanes = _bare(size, variant, variant.lanes, dtype)
        fill(lanes, model)
        model = lanes
    rule = _RULES.get(variant.rule)
    if rule is not None:
        for layer in model.model.layers:
            for name in ("attention_reduce", "mlp_reduce"):
                setattr(layer, name, rule(cast(LaneReduce, getattr(layer, name))))
    return model


def _bare(size: Size, variant: Variant, lanes: int, dtype: torch.dtype) -> LaneformerForCausalLM:
    fields = variant.config_fields(size) | {"num_lanes": lanes}
    config = LaneformerConfig(**fields, initializer_range=1 / math.sqrt(size.hidden))
    model = LaneformerForCausalLM(config)
    if size.attention == "narrow":
        from studies.delay import processor  # compiles, which other sizes need not

        model.config._attn_implementation = processor.NAME
    model.to(dtype)
    return model


@torch.no_grad()
def fill(lanes: LaneformerForCausalLM, dense: LaneformerForCausalLM) -> None:
    """Give the lanes their shares of the dense model's weights."""
    given = dict(dense.named_parameters())
    for name, parameter in lanes.named_parameters():
        parameter.copy_(cut(name, given[name], lanes.config.num_lanes))


def cut(name: str, whole: Tensor, lanes: int) -> Tensor:
    """Return a parameter's shares [L, o, i] of the matrix [1, o, i]; other parameters as they are.

    A lane has rows of what widens its stream, and columns of what writes into it.
    """
    if "layers" not in name or "norm" in name:
        return whole
    if name.endswith(("wo.weight", "w2.weight")):
        return torch.stack(whole[0].chunk(lanes, dim=1))
    return whole.reshape(lanes, -1, whole.shape[-1])


def layers_of(variant: Variant, size: Size) -> int:
    """Return the layers that are heard, for counting what a token's mathematics needs."""
    return size.layers - variant.fewer_layers - variant.unheard


class Mixed:
    """A model in bfloat16, or as said, that computes, and its twin in float32 that learns."""

    def __init__(self, model: LaneformerForCausalLM, dtype: str = "bfloat16") -> None:
        self.masters = copy.deepcopy(model).float()
        self.model = model
        model.to(getattr(torch, dtype))
        self._pairs = list(zip(self.masters.parameters(), model.parameters(), strict=True))

    def collect(self) -> None:
        """Add the gradients of a pass to those of the step, in float32."""
        heard = [(master, one) for master, one in self._pairs if one.grad is not None]
        added = [one.grad.float() for _, one in heard if one.grad is not None]
        begun = [master.grad for master, _ in heard if master.grad is not None]
        if begun:
            assert len(begun) == len(added), "each pass of a step hears the same layers"
            torch._foreach_add_(begun, added)
        else:
            for (master, _), gradient in zip(heard, added, strict=True):
                master.grad = gradient
        for _, one in heard:
            one.grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """Round the learnt weights into those that compute."""
        torch._foreach_copy_(
            [one.detach() for _, one in self._pairs], [m.detach() for m, _ in self._pairs]
        )


def summed_nats(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Return the cross entropy of all targets together, in nats, computed in float32."""
    return nn.functional.cross_entropy(
        logits_BTV.flatten(0, 1).float(), targets_BT.flatten(), reduction="sum"
    )


def nats_of(size: Size, compiled: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Return what computes the summed cross entropy at a size."""
    if size.attention == "narrow":
        from studies.delay import processor

        return processor.summed_nats
    return torch.compile(summed_nats, dynamic=False) if compiled else summed_nats


def logits_of(model: LaneformerForCausalLM, ids_BT: Tensor) -> Tensor:
    """Return the logits [B, T, V] of rows."""
    found: Tensor = model(input_ids=ids_BT, attention_mask=dict(MASKS), use_cache=False).logits
    return found
