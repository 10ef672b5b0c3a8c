"""Experts of a layer in one tensor, where a family's files may have them so, as one for each.

Gate and up are in one tensor then, of each expert the rows of gate and behind them those of up.
"""

from monolane.errors import CheckpointError
from monolane.model._checkpoint import Checkpoint, Cut
from monolane.model._config import ModelConfig
from monolane.model.families import merged_names, tensor_names
from monolane.ops import Role


def separate_experts(config: ModelConfig, checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint in which each expert's matrices have the names that ``names`` has.

    CheckpointError if a tensor that has them all is of another shape. Nothing is read or copied.
    """
    all_merged, mixture = merged_names(config), config.experts
    if mixture is None or not all_merged:
        return checkpoint
    names, wide, hidden = tensor_names(config), mixture.inner, config.hidden_size
    # Of each role the rows of all that the tensor has, and which of them.
    rows = {
        Role.EXPERT_GATE: (2 * wide, slice(0, wide)),
        Role.EXPERT_UP: (2 * wide, slice(wide, 2 * wide)),
        Role.EXPERT_DOWN: (hidden, slice(0, hidden)),
    }
    cuts: dict[str, Cut] = {}
    for layer in (i for i, x in enumerate(config.layers) if x.experts):
        for role, merged in all_merged.items():
            stored = merged.format(i=layer)
            if stored not in checkpoint:
                continue
            count, own = rows[role]
            expected = (mixture.count, count, wide if role is Role.EXPERT_DOWN else hidden)
            if (found := checkpoint.shape_of(stored)) != expected:
                raise CheckpointError(
                    f"{checkpoint.file_of(stored)}: tensor {stored!r}: expected shape "
                    f"{list(expected)} from config.json, got {list(found)}"
                )
            for e in range(mixture.count):
                cuts[names[role].format(i=layer, e=e)] = Cut(stored, e, own)
    return checkpoint.with_cuts(cuts) if cuts else checkpoint
