"""LoRA on the lanes' matrices: by PEFT, or as the weights' own where a run keeps its states itself.

A Laneformer's weights are stacks [L, out, in], which PEFT adapts as it does stacked experts
(``target_parameters``): each lane's matrix gets a low-rank update of its own. What PEFT saves loads
again with ``PeftModel.from_pretrained``.

The merge is defined in bits: the folder's weights widened to float32, plus the float32 update that
PEFT computes from the adapter, rounded once to the folder's dtype.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from monolane.errors import CheckpointError
from monolane.hf import LaneformerForCausalLM, check_whole
from monolane.model import SafetensorsFile
from monolane.tune._recipe import LoraRecipe

_PARTS = {"wq": "attention", "wk": "attention", "wv": "attention", "wo": "attention"}


class LowRank(nn.Module):
    """A stack of matrices [L, out, in] with an update of low rank added to each.

    That is ``scale`` times B A, with B all zeros at first and A as PEFT draws it: uniform within
    1 / sqrt(in).
    """

    def __init__(self, weight_LOI: Tensor, rank: int, scale: float, draws: torch.Generator) -> None:
        super().__init__()
        lanes, rows, columns = weight_LOI.shape
        a_LRI = torch.rand(lanes, rank, columns, generator=draws) * 2 - 1
        self.a_LRI = nn.Parameter((a_LRI / columns**0.5).to(weight_LOI))
        self.b_LOR = nn.Parameter(weight_LOI.new_zeros(lanes, rows, rank))
        self.scale = scale

    def forward(self, weight_LOI: Tensor) -> Tensor:
        """Return the matrices as they are used, [L, out, in]."""
        return torch.baddbmm(weight_LOI, self.b_LOR, self.a_LRI, alpha=self.scale)


@contextmanager
def low_rank(model: LaneformerForCausalLM, recipe: LoraRecipe, seed: int) -> Iterator[None]:
    """Let low-rank updates alone be trained in here; afterwards they are part of the weights.

    For loops of our own: whatever reads a weight reads it with its update, and the model's
    ``state_dict`` has both apart.
    """
    draws = torch.Generator().manual_seed(seed)
    frozen = [weight for weight in model.parameters() if weight.requires_grad]
    model.requires_grad_(False)
    matrices = [
        getattr(getattr(layer, _PARTS.get(name, "feed_forward")), name)
        for layer in model.model.layers
        for name in recipe.matrices
    ]
    scale = recipe.alpha / recipe.rank
    for matrix in matrices:
        update = LowRank(matrix.weight, recipe.rank, scale, draws)
        parametrize.register_parametrization(matrix, "weight", update)
    try:
        yield
    finally:
        for matrix in matrices:
            parametrize.remove_parametrizations(matrix, "weight", leave_parametrized=True)
        for weight in frozen:
            weight.requires_grad_(True)


@contextmanager
def _known_warnings() -> Iterator[None]:
    """PEFT 0.21 asks a model for a property that Transformers 5.23 calls by another name."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
        yield


def add_lora(model: LaneformerForCausalLM, recipe: LoraRecipe) -> Any:
    """Return the model with adapters (a PeftModel), whose own weights are frozen."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        target_modules=[],
        target_parameters=[
            f"{_PARTS.get(name, 'feed_forward')}.{name}.weight" for name in recipe.matrices
        ],
        task_type="CAUSAL_LM",
    )
    with _known_warnings():
        return get_peft_model(model, config)


def merged(adapted: Any) -> LaneformerForCausalLM:
    """Return the plain model with the updates added to its float32 weights."""
    with torch.no_grad():
        model: LaneformerForCausalLM = adapted.merge_and_unload(safe_merge=True)
    return model


def merge_adapter(model: LaneformerForCausalLM, adapter: Path) -> LaneformerForCausalLM:
    """Return ``model``, in float32, with the adapter of a folder in PEFT's layout merged in.

    CheckpointError unless the folder has each weight of the adapter, and no other, in
    adapter_model.safetensors: PEFT would look for a pickle, or ask the Hub.
    """
    from peft import PeftModel, get_peft_model_state_dict
    from peft.utils import load_peft_weights

    file = SafetensorsFile(adapter / "adapter_model.safetensors").file
    with _blaming(adapter), _known_warnings(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Found missing adapter keys")  # an error below
        adapted = PeftModel.from_pretrained(model, adapter)
        wanted = get_peft_model_state_dict(adapted).keys()
        stored = load_peft_weights(str(adapter), device="cpu").keys()
    file.check_unchanged()
    check_whole(adapter, wanted - stored, stored - wanted)
    return merged(adapted)


@contextmanager
def _blaming(adapter: Path) -> Iterator[None]:
    """Turn what PEFT raises for a config that is none into a CheckpointError that names it."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{adapter}: expected an adapter that PEFT can read, got {error!r:.200}; check its "
            "adapter_config.json, or save it again"
        ) from error
