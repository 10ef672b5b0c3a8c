"""Operations: what a module of a layer may be, and what each says of itself.

Leaves: a spec has sizes, the roles and shapes of weights, and what a sequence keeps. Nothing here
computes anything. ``monolane.model`` makes them of a config, and executors read them.
"""

from monolane.ops._folders import modules, operations
from monolane.ops._names import EXPERT_ROLES, FILE_ROLES, JOINED, PARTED, Buffer, Kind, Role, Shapes
from monolane.ops._spec import (
    MAX_SIZE,
    MAX_WIDTH,
    SCRATCH_STEP,
    Activation,
    Buffers,
    Operation,
    Record,
    Room,
    State,
)
from monolane.ops.attention.index import Index
from monolane.ops.attention.latent import Latent
from monolane.ops.attention.spec import ROTARIES, Attention, LayerRotary, QkNorm
from monolane.ops.attention.temperature import Temperature
from monolane.ops.delta.spec import Delta
from monolane.ops.experts.spec import Experts
from monolane.ops.mlp.spec import Mlp

__all__ = [
    "EXPERT_ROLES",
    "FILE_ROLES",
    "JOINED",
    "MAX_SIZE",
    "MAX_WIDTH",
    "PARTED",
    "ROTARIES",
    "SCRATCH_STEP",
    "Activation",
    "Attention",
    "Buffer",
    "Buffers",
    "Delta",
    "Experts",
    "Index",
    "Kind",
    "Latent",
    "LayerRotary",
    "Mlp",
    "Operation",
    "QkNorm",
    "Record",
    "Role",
    "Room",
    "Shapes",
    "State",
    "Temperature",
    "modules",
    "operations",
]
