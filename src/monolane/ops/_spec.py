"""What every operation says of itself."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Literal, get_args

from monolane._structs import Struct
from monolane.ops._names import FILE_ROLES, Buffer, Shapes

Buffers = dict[Buffer, tuple[int, ...]]
Record = dict[str, Any]  # of a struct, by its fields
# See _operations.py of the reference. "relu_squared" is of what has no gate.
Activation = Literal["silu", "gelu_tanh", "clamped_swiglu", "relu_squared"]
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)

# No dimension of a decoder comes near 2^24 (a vocabulary of 16 million): a larger number is a
# damaged or hostile file, and refusing it here keeps every product of sizes far from overflow.
MAX_SIZE = 1 << 24
# Token positions of one pass at most: what the kernels keep in registers and fast memory. A pass
# that reads nothing but a prompt may be wider.
MAX_WIDTH = 64
# Floats of a cache line, at whose beginning each piece of a worker's scratch begins.
SCRATCH_STEP = 16


def is_gated(activation: Activation) -> bool:
    """Tell whether an MLP with this activation multiplies one half by what it makes of another."""
    return activation != "relu_squared"


def pieces(*sizes: int) -> int:
    """Return how many floats of scratch pieces of these sizes take."""
    return sum(-(-size // SCRATCH_STEP) * SCRATCH_STEP for size in sizes)


@dataclass(frozen=True, slots=True)
class Room:
    """What the shapes of buffers depend on beside an operation's own sizes."""

    lanes: int  # L
    hidden: int  # D
    width: int  # T, token positions of a pass at most
    context: int  # tokens that a sequence may hold
    workers: int  # of a group
    group_lanes: int  # lanes of a group
    tiled: bool = False  # weights are packed in tiles: see DeviceDescription.tile_rows


@dataclass(frozen=True, slots=True)
class State:
    """What a sequence keeps of a layer in a fixed size, as its tokens up to the last one left it.

    It lies in parts, each of which one worker reads and writes. A state goes forward only: of
    tokens that may be taken back the inputs are kept, with which their steps can be taken later.
    """

    parts: int
    numbers: int  # of a part's state; 0: there are inputs alone
    inputs: int  # numbers of a token that its step in a part takes
    before: int  # earlier tokens whose inputs a step reads

    @property
    def scratch(self) -> int:
        """Floats that a native worker needs to take a part's steps (csrc/ops/recurrent.h).

        They are inputs, of earlier tokens, of those that may be taken back and of the pass's, and
        a copy of the state.
        """
        return pieces((self.before + 2 * MAX_WIDTH) * self.inputs, self.numbers)


class Operation(ABC):
    """The sizes of one layer's operation; they count over all lanes.

    A plain value: who computes it is elsewhere (``reference``, ``plan``, native code).
    """

    __slots__ = ()
    # Executors that compute it; the others refuse a model that has it.
    computed_by: ClassVar[tuple[str, ...]] = ("reference", "interpreter", "cpu")
    # How native executors read its sizes: fields of PlanModule, and their structs.
    structs: ClassVar[Mapping[str, Struct]]
    # The enums in these, by their names in C++: members in the order of their codes.
    enums: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @abstractmethod
    def tensors(self, hidden: int, lanes: int) -> Shapes:
        """Return its weights' shapes, lanes first, in the order in which a pass reads them.

        Of experts' matrices that of one. With those that files have in the place of others, see
        FILE_ROLES.
        """

    def outer(self, hidden: int) -> Shapes:
        """Return the shapes of weights outside the layers, which all layers that have it share."""
        del hidden
        return {}

    @abstractmethod
    def buffers(self, room: Room) -> Buffers:
        """Return the shapes of what its phases leave for each other, and for the next pass."""

    def state(self) -> State | None:
        """Return what a sequence keeps of it in a fixed size; None: nothing."""
        return None

    def scratch(self, room: Room) -> int:
        """Return how many floats a native worker needs of its own for its phases.

        By default what taking the steps of its state needs.
        """
        del room
        kept = self.state()
        return 0 if kept is None else kept.scratch

    def native(self, room: Room) -> dict[str, Record]:
        """Return the structs' values by the names of their fields.

        Without more ado the operation has one struct, whose fields are named as its own.
        """
        del room
        ((name, struct),) = self.structs.items()
        return {name: self.fill(struct)}

    def fill(self, struct: Struct) -> Record:
        """Return the values of a struct whose fields are named as the operation's, enums coded."""
        codes = {name: getattr(self, name) for name in (x.name for x in struct.fields)}
        for x in struct.fields:
            if x.kind in self.enums:
                codes[x.name] = self.enums[x.kind].index(codes[x.name])
        return codes

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
            if role not in FILE_ROLES
        )
