"""What every operation says of itself."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import prod

from monolane.ops._names import JOINED, Buffer, Shapes

Buffers = dict[Buffer, tuple[int, ...]]

# No dimension of a decoder comes near 2^24 (a vocabulary of 16 million): a larger number is a
# damaged or hostile file, and refusing it here keeps every product of sizes far from overflow.
MAX_SIZE = 1 << 24


@dataclass(frozen=True, slots=True)
class Room:
    """What the shapes of buffers depend on beside an operation's own sizes."""

    lanes: int  # L
    width: int  # T, token positions of a pass at most
    context: int  # tokens that a sequence may hold
    workers: int  # of a group
    group_lanes: int  # lanes of a group


class Operation(ABC):
    """The sizes of one layer's operation; they count over all lanes.

    A plain value: who computes it is elsewhere (``reference``, ``plan``, native code).
    """

    __slots__ = ()

    @abstractmethod
    def tensors(self, hidden: int, lanes: int) -> Shapes:
        """Return its weights' shapes, lanes first, in the order in which a pass reads them.

        Of experts' matrices that of one. With those that files have in the place of several, see
        JOINED.
        """

    @abstractmethod
    def buffers(self, room: Room) -> Buffers:
        """Return the shapes of what its phases leave for each other, and for the next pass."""

    @property
    def copies(self) -> int:
        """How many there are of each tensor whose role is ``of_each``."""
        return 1

    def parameters(self, hidden: int) -> int:
        """Return the number of weights, for a stream of so many numbers."""
        shapes = self.tensors(hidden, 1).items()
        return sum(
            prod(shape) * (self.copies if role.of_each else 1)
            for role, shape in shapes
            if role not in JOINED
        )
