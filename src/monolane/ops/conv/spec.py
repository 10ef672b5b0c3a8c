"""A gated short convolution (LFM2, arXiv:2511.23404): each channel is summed over a few tokens.

With x the normed stream of a token and C channels:

    b, c, u = conv_in(x)                   # [C] each
    s = sum over the last K tokens of (b * u) times conv_taps, this token's the last
    y = conv_out(c * s)

What a sequence is kept as is b * u of its last K - 1 tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from monolane._structs import Field, Struct
from monolane.errors import ConfigError
from monolane.ops._names import Buffer, Role, Shapes
from monolane.ops._spec import MAX_SIZE, Buffers, Operation, Room, State

MAX_TAPS = 64  # published models have 3

_STRUCT = Struct(
    "PlanConv",
    (
        Field("channels", "i32", "C"),
        Field("taps", "i32", "K: tokens over which a channel is summed"),
        Field("parts", "i32", "into which channels are cut, each of one worker"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv(Operation):
    """A gated short convolution of one layer. ConfigError if its sizes make no sense."""

    structs: ClassVar[Mapping[str, Struct]] = {"conv": _STRUCT}

    channels: int  # C
    taps: int  # K

    def __post_init__(self) -> None:
        if not 1 <= self.channels <= MAX_SIZE:
            raise ConfigError(f"conv: expected 1 to {MAX_SIZE} channels, got {self.channels}")
        if not 1 <= self.taps <= MAX_TAPS:
            raise ConfigError(f"conv: expected 1 to {MAX_TAPS} taps, got {self.taps}")

    @property
    def parts(self) -> int:
        """Into how many parts channels are cut: of 16 numbers, a cache line, where that goes."""
        return self.channels // 16 if self.channels % 16 == 0 else 1

    @property
    def each(self) -> int:
        """Channels of a part."""
        return self.channels // self.parts

    def tensors(self, hidden: int, lanes: int) -> Shapes:
        """Return the shapes of its weights; see Operation."""
        del lanes
        return {
            Role.CONV_IN: (1, 3 * self.channels, hidden),
            Role.CONV_TAPS: (1, self.channels, 1, self.taps),
            Role.CONV_OUT: (1, hidden, self.channels),
        }

    def buffers(self, room: Room) -> Buffers:
        """Return the shapes of what its phases leave for each other; see Operation."""
        return {
            Buffer.MIXED: (1, room.width, 3 * self.channels),
            Buffer.HEADS: (1, room.width, self.channels),
            Buffer.STATE: (self.parts, (self.taps - 1) * self.each),
        }

    def state(self) -> State:
        """Return what a sequence keeps: of a part the last products b * u; see Operation."""
        return State(self.parts, 0, self.each, self.taps - 1)
