"""Kimi's delta rule (arXiv:2510.26692): a gated delta rule that keeps each row in its own part.

With x the normed stream of a token, of U heads of d numbers each:

    q, k, v = q(x), k(x), v(x)              # [U, d] each: the channels
    a = kda_decay_up(kda_decay_down(x))     # [U, d], of rank d
    z = kda_gate_up(kda_gate_down(x))       # the same
    b = kda_beta(x)                         # [U]
    q, k, v = silu(each channel's sum over its last C numbers, this token's the last, times conv)
    q, k = q / |q| / sqrt(d), k / |k|       # |x| = sqrt(sum of x^2 + 1e-6)
    of each head, with the state S [d, d]:
        S = exp(-exp(decay) * softplus(a + step)) * S       # of each row its own factor
        S = S + k (sigmoid(b) * (v - k S))                  # an outer product
        o = norm(q S) * sigmoid(z)          # the norm's scale [d] is of all heads, without offset
    y = o(all o)

States and steps are as those of the gated delta rule (ops/delta): float32, a token after the other.
What a sequence is kept as is S and the last C - 1 inputs of the channels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from monolane._structs import Field, Struct
from monolane.errors import ConfigError
from monolane.ops._names import Buffer, Role, Shapes
from monolane.ops._spec import MAX_SIZE, Buffers, Operation, Room, State, pieces

MAX_KERNEL = 64  # published models have 4

_STRUCT = Struct(
    "PlanKda",
    (
        Field("heads", "i32", "U"),
        Field("width", "i32", "d: of a head's query, key and value"),
        Field("kernel", "i32", "C: tokens over which its channels are summed"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kda(Operation):
    """Kimi's delta rule of one layer. ConfigError if its sizes make no sense."""

    structs: ClassVar[Mapping[str, Struct]] = {"kda": _STRUCT}

    heads: int  # U
    width: int  # d
    kernel: int  # C

    def __post_init__(self) -> None:
        for name in ("heads", "width"):
            if not 1 <= getattr(self, name) <= MAX_SIZE:
                raise ConfigError(
                    f"kda: expected {name} of 1 to {MAX_SIZE}, got {getattr(self, name)}"
                )
        if not 1 <= self.kernel <= MAX_KERNEL:
            raise ConfigError(
                f"kda: expected a kernel of 1 to {MAX_KERNEL} tokens, got {self.kernel}"
            )

    def tensors(self, hidden: int, lanes: int) -> Shapes:
        """Return the shapes of its weights; see Operation."""
        del lanes
        rows, down, up = (
            (1, self.columns, hidden),
            (1, self.width, hidden),
            (1, self.columns, self.width),
        )
        taps = (1, self.columns, 1, self.kernel)
        return {
            Role.Q: rows,
            Role.K: rows,
            Role.V: rows,
            Role.KDA_DECAY_DOWN: down,
            Role.KDA_GATE_DOWN: down,
            Role.KDA_BETA: (1, self.heads, hidden),
            Role.KDA_DECAY_UP: up,
            Role.KDA_GATE_UP: up,
            Role.KDA_Q_CONV: taps,
            Role.KDA_K_CONV: taps,
            Role.KDA_V_CONV: taps,
            Role.KDA_DECAY: (1, 1, 1, self.heads, 1),
            Role.KDA_STEP: (1, self.columns),
            Role.KDA_NORM: (1, self.width),
            Role.O: (1, hidden, self.columns),
        }

    def buffers(self, room: Room) -> Buffers:
        """Return the shapes of what its phases leave for each other; see Operation."""
        kept = self.width * self.width + (self.kernel - 1) * 3 * self.width
        return {
            Buffer.MIXED: (1, room.width, self.mixed),
            Buffer.LATENTS: (1, room.width, 2 * self.columns),
            Buffer.HEADS: (1, room.width, self.columns),
            Buffer.STATE: (self.heads, kept),
        }

    @property
    def columns(self) -> int:
        """Numbers of a token of all heads: of queries, as many of keys and of values."""
        return self.heads * self.width

    @property
    def mixed(self) -> int:
        """Numbers of a token that are made of the stream: q, k, v, what a and z are made of, b."""
        return 3 * self.columns + 2 * self.width + self.heads

    def scratch(self, room: Room) -> int:
        """Return the floats of a worker; see Operation.

        Beside what every state needs, a head's channels, factors of its rows and what it says.
        """
        del room
        return self.state().scratch + pieces(3 * self.width, self.width, self.width)

    def state(self) -> State:
        """Return what a sequence keeps: of a head S; see Operation.

        A step takes q, k and v of a token, then a, then b.
        """
        return State(self.heads, self.width * self.width, 4 * self.width + 1, self.kernel - 1)
