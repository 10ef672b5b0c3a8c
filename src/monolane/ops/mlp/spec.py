"""A dense MLP: activation(gate_scale * gate x) * up x, then down; without a gate max(up x, 0)^2."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from monolane._structs import Field, Struct
from monolane.ops._names import Buffer, Role, Shapes
from monolane.ops._spec import ACTIVATIONS, Activation, Buffers, Operation, Room, is_gated

_STRUCT = Struct(
    "PlanMlp",
    (
        Field("inner", "i32", "F, over all lanes"),
        Field("activation", "GateActivation", "of the gate"),
        Field("gate_scale", "f32", "of what the gate's matrix makes"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp(Operation):
    """A dense MLP of one layer."""

    structs: ClassVar[Mapping[str, Struct]] = {"mlp": _STRUCT}
    enums: ClassVar[Mapping[str, tuple[str, ...]]] = {"GateActivation": ACTIVATIONS}

    inner: int  # F, over all lanes
    activation: Activation = "silu"
    gate_scale: float = 1.0  # of what the gate's matrix makes

    @property
    def gated(self) -> bool:
        """Whether there is a gate."""
        return is_gated(self.activation)

    def tensors(self, hidden: int, lanes: int) -> Shapes:
        """Return the shapes of its weights; see Operation."""
        rows, down = (lanes, self.inner // lanes, hidden), (lanes, hidden, self.inner // lanes)
        if not self.gated:
            return {Role.UP: rows, Role.DOWN: down}
        shapes: Shapes = {Role.GATE: rows, Role.UP: rows, Role.DOWN: down}
        return shapes | ({Role.GATE_UP: (1, 2 * self.inner, hidden)} if lanes == 1 else {})

    def buffers(self, room: Room) -> Buffers:
        """Return the shapes of what its phases leave for each other; see Operation."""
        return {Buffer.HIDDEN: (room.lanes, room.width, self.inner // room.lanes)}
