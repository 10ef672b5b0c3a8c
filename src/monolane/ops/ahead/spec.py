"""What a layer that predicts further ahead begins with (DeepSeek-V3, arXiv:2412.19437, 2.2).

Such a layer goes on from what a model's head read of a token, its state h, and from the embedding e
of the token behind it. Both are normed, and one product brings them to the width of a stream, which
the layers behind begin with in the embedding's place:

    x = ahead_in [norm(e) | norm(h)]        # [D], of 2 D columns
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from monolane._structs import Field, Struct
from monolane.ops._names import Buffer, Role, Shapes
from monolane.ops._spec import Buffers, Operation, Room


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead(Operation):
    """The beginning of the streams of layers that predict further ahead, of one lane."""

    structs: ClassVar[Mapping[str, Struct]] = {
        "ahead": Struct("PlanAhead", (Field("width", "i32", "D, of a state"),))
    }

    width: int  # D

    def tensors(self, hidden: int, lanes: int) -> Shapes:
        """Return the shapes of its weights; see Operation."""
        del lanes
        return {
            Role.AHEAD_TOKEN_NORM: (1, hidden),
            Role.AHEAD_STATE_NORM: (1, self.width),
            Role.AHEAD_IN: (1, hidden, hidden + self.width),
        }

    def buffers(self, room: Room) -> Buffers:
        """Return the shape of what a leader lays out for it; see Operation."""
        return {Buffer.STATES: (1, room.width, self.width)}
