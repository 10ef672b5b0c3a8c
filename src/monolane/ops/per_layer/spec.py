"""Per-layer embeddings (Gemma 3n and 4): what a token has for each layer, gated by the stream.

Of each token and layer there is an input of P numbers, made once a pass: the token's row in a table
of all layers, and a product of its embedding, normed. A layer's module multiplies it by what its
gate makes of the stream, and brings the products back to the stream's width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from monolane._structs import Field, Struct
from monolane.ops._names import Buffer, Role, Shapes
from monolane.ops._spec import ACTIVATIONS, Activation, Buffers, Operation, Room, pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayer(Operation):
    """Per-layer embeddings of one layer."""

    structs: ClassVar[Mapping[str, Struct]] = {
        "per_layer": Struct(
            "PlanPerLayer",
            (
                Field("inner", "i32", "P: numbers of a token for one layer"),
                Field("layers", "i32", "N: layers that the table has numbers for"),
                Field("rows", "i32", "of the table; tokens beyond read the first"),
                Field("activation", "GateActivation", "of the gate"),
            ),
        )
    }
    enums: ClassVar[Mapping[str, tuple[str, ...]]] = {"GateActivation": ACTIVATIONS}

    inner: int  # P
    layers: int  # N
    rows: int  # tokens of the table, V or fewer; the others read the first row
    activation: Activation

    def outer(self, hidden: int) -> Shapes:
        """Return the shapes of the weights that all layers share; see Operation."""
        columns = self.layers * self.inner
        return {
            Role.PER_LAYER_EMBEDDING: (self.rows, columns),
            Role.PER_LAYER_PROJECTION: (1, columns, hidden),
            Role.PER_LAYER_NORM: (1, self.inner),
        }

    def tensors(self, hidden: int, lanes: int) -> Shapes:
        """Return the shapes of its weights; see Operation."""
        return {
            Role.PER_LAYER_GATE: (lanes, self.inner, hidden),
            Role.PER_LAYER_OUT: (lanes, hidden, self.inner),
        }

    def buffers(self, room: Room) -> Buffers:
        """Return the shapes of what its phases leave for each other; see Operation."""
        return {
            Buffer.HIDDEN: (1, room.width, self.inner),
            Buffer.PER_LAYER: (1, room.width, self.layers * self.inner),
        }

    def scratch(self, room: Room) -> int:
        """Return the floats of a worker, for a row of the table; see Operation."""
        del room
        return pieces(self.layers * self.inner)
