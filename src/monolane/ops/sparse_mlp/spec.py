"""An MLP whose gate lets few numbers through (Gemma 3n): those far above the mean of a token's.

With g the gate's F numbers of a token, of mean m and standard deviation s, and z the number below
which a normal distribution has ``sparsity`` of its weight:

    y = down(activation(max(0, g - m - z s)) * up)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

from monolane._structs import Field, Struct
from monolane.errors import ConfigError
from monolane.ops._names import Buffer, Role, Shapes
from monolane.ops._spec import ACTIVATIONS, Activation, Buffers, Operation, Room


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseMlp(Operation):
    """Such an MLP of one layer. ConfigError if its sparsity makes no sense."""

    structs: ClassVar[Mapping[str, Struct]] = {
        "sparse_mlp": Struct(
            "PlanSparseMlp",
            (
                Field("inner", "i32", "F"),
                Field("deviations", "f32", "z: by so many a number must be above the mean"),
                Field("activation", "GateActivation", "of the gate"),
            ),
        )
    }
    enums: ClassVar[Mapping[str, tuple[str, ...]]] = {"GateActivation": ACTIVATIONS}

    inner: int  # F
    sparsity: float
    activation: Activation

    def __post_init__(self) -> None:
        if not 0 < self.sparsity < 1:
            raise ConfigError(f"sparsity: expected a number from 0 to 1, got {self.sparsity}")

    @property
    def deviations(self) -> float:
        """Z, by how many standard deviations a number must be above the mean to be let through."""
        return NormalDist().inv_cdf(self.sparsity)

    def tensors(self, hidden: int, lanes: int) -> Shapes:
        """Return the shapes of its weights; see Operation."""
        del lanes
        rows = (1, self.inner, hidden)
        return {Role.GATE: rows, Role.UP: rows, Role.DOWN: (1, hidden, self.inner)}

    def buffers(self, room: Room) -> Buffers:
        """Return the shapes of what its phases leave for each other; see Operation."""
        return {Buffer.HIDDEN: (1, room.width, 2 * self.inner)}
