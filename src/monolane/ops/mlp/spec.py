"""A dense MLP: activation(gate x) * up x, then down."""

from dataclasses import dataclass

from monolane.ops._names import Buffer, Role, Shapes
from monolane.ops._spec import Buffers, Operation, Room


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp(Operation):
    """A dense MLP of one layer."""

    inner: int  # F, over all lanes

    def tensors(self, hidden: int, lanes: int) -> Shapes:
        """Return the shapes of its weights; see Operation."""
        rows = (lanes, self.inner // lanes, hidden)
        return {Role.GATE: rows, Role.UP: rows, Role.DOWN: (lanes, hidden, self.inner // lanes)}

    def buffers(self, room: Room) -> Buffers:
        """Return the shapes of what its phases leave for each other; see Operation."""
        return {Buffer.HIDDEN: (room.lanes, room.width, self.inner // room.lanes)}
