"""A learned augmented residual layer (Gemma 3n, arXiv:2411.07501), of rank R.

With x the normed stream of a token:

    y = x + norm(laurel_right(laurel_left(x)))
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from monolane._structs import Field, Struct
from monolane.ops._names import Buffer, Role, Shapes
from monolane.ops._spec import Buffers, Operation, Room


@dataclass(frozen=True, slots=True, kw_only=True)
class Laurel(Operation):
    """A learned residual of one layer."""

    structs: ClassVar[Mapping[str, Struct]] = {
        "laurel": Struct("PlanLaurel", (Field("rank", "i32", "R"),))
    }

    rank: int  # R

    def tensors(self, hidden: int, lanes: int) -> Shapes:
        """Return the shapes of its weights; see Operation."""
        del lanes
        return {
            Role.LAUREL_LEFT: (1, self.rank, hidden),
            Role.LAUREL_RIGHT: (1, hidden, self.rank),
            Role.LAUREL_NORM: (1, hidden),
        }

    def buffers(self, room: Room) -> Buffers:
        """Return the shapes of what its phases leave for each other; see Operation."""
        return {
            Buffer.HIDDEN: (1, room.width, self.rank),
            Buffer.MIXED: (1, room.width, room.hidden),
        }
