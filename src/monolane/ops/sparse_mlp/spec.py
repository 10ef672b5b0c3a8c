"""An MLP whose gate lets few numbers through (Gemma 3n): those far above the mean of a token's.

With g the gate's F numbers of a token, of mean m and standard deviation s, and z the number below
which a normal distribution has ``sparsity`` of its weight:

    y = down(activation(max(0, g - m - z s)) * up)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from monolane._structs import Struct
from monolane.errors import ConfigError
from monolane.ops._names import Role, Shapes
from monolane.ops._spec import Activation, Buffers, Operation, Record, Room


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseMlp(Operation):
    """Such an MLP of one layer. ConfigError if its sparsity makes no sense."""

    computed_by: ClassVar[tuple[str, ...]] = ("reference",)
    structs: ClassVar[Mapping[str, Struct]] = {}

    inner: int  # F
    sparsity: float
    activation: Activation

    def __post_init__(self) -> None:
        if not 0 < self.sparsity < 1:
            raise ConfigError(f"sparsity: expected a number from 0 to 1, got {self.sparsity}")

    def tensors(self, hidden: int, lanes: int) -> Shapes:
        """Return the shapes of its weights; see Operation."""
        del lanes
        rows = (1, self.inner, hidden)
        return {Role.GATE: rows, Role.UP: rows, Role.DOWN: (1, hidden, self.inner)}

    def buffers(self, room: Room) -> Buffers:
        """Return nothing: no plan has it yet; see Operation."""
        del room
        return {}

    def native(self, room: Room) -> dict[str, Record]:
        """Return nothing: no native executor computes it yet; see Operation."""
        del room
        return {}
