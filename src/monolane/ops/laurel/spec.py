"""A learned augmented residual layer (Gemma 3n, arXiv:2411.07501), of rank R.

With x the normed stream of a token:

    y = x + norm(laurel_right(laurel_left(x)))
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from monolane._structs import Struct
from monolane.ops._names import Role, Shapes
from monolane.ops._spec import Buffers, Operation, Record, Room


@dataclass(frozen=True, slots=True, kw_only=True)
class Laurel(Operation):
    """A learned residual of one layer."""

    computed_by: ClassVar[tuple[str, ...]] = ("reference",)
    structs: ClassVar[Mapping[str, Struct]] = {}

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
        """Return nothing: no plan has it yet; see Operation."""
        del room
        return {}

    def native(self, room: Room) -> dict[str, Record]:
        """Return nothing: no native executor computes it yet; see Operation."""
        del room
        return {}
