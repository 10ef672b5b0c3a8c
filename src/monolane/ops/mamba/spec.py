"""Mamba-2 (arXiv:2405.21060): heads with a state each, which decays and to which inputs are added.

With x the normed stream of a token, of G groups each with H / G heads:

    z, u, b, c, t = mamba_in(x)    # [H, p], [H, p], [G, n], [G, n], [H]: u, b, c are the channels
    z, u, b, c, t = each times its scale, and all times that of x
    u, b, c = silu(each channel's sum over its last C numbers, this token's the last, times conv,
                   and the channel's bias)
    of each head, with the state S [n, p], and b, c of its group:
        r = softplus(t + step)
        S = exp(-exp(decay) * r) * S + b (r * u)     # an outer product
        o = c S + skip * u
    y = mamba_out(norm(all o * silu(z)))  # each group's H / G * p numbers by their own square

The norm has a scale for each number, without offset; some models have none. A state is float32,
whatever the weights are. Each token's step is taken by itself, in order, so that bits do not depend
on how tokens are fed; the chunked form, which is other arithmetic, is not used. What a sequence is
kept as is S and the last C - 1 inputs of the channels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from monolane._structs import Field, Struct
from monolane.errors import ConfigError
from monolane.ops._names import Buffer, Role, Shapes
from monolane.ops._spec import MAX_SIZE, Buffers, Operation, Record, Room, State, pieces

# Published models have 4. A cache keeps so many inputs of each channel, less one.
MAX_KERNEL = 64
# Heads of a part at most. Each part keeps the inputs of b and c for itself: with one head of 64
# numbers and states of 128, they would be five times those of its u.
_TOGETHER = 4
_SCALES = ("gate_scale", "input_scale", "write_scale", "read_scale", "step_scale")

_STRUCT = Struct(
    "PlanMamba",
    (
        Field("heads", "i32", "H"),
        Field("head", "i32", "p: width of a head"),
        Field(
            "groups", "i32", "G: of consecutive heads, which share b and c, and are normed by one"
        ),
        Field("state", "i32", "n: width of b and c"),
        Field("kernel", "i32", "C: tokens over which its channels are summed"),
        Field("together", "i32", "heads of a part, all of one group"),
        Field("normed", "i32", "1: what the last matrix reads is normed"),
        Field("gate_scale", "f32", "of z"),
        Field("input_scale", "f32", "of u"),
        Field("write_scale", "f32", "of b"),
        Field("read_scale", "f32", "of c"),
        Field("step_scale", "f32", "of t"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba(Operation):
    """Mamba-2 of one layer. ConfigError if its sizes make no sense."""

    structs: ClassVar[Mapping[str, Struct]] = {"mamba": _STRUCT}

    heads: int  # H
    head: int  # p, width of a head
    groups: int  # G, of consecutive heads
    state_size: int  # n, width of b and c
    kernel: int  # C, tokens over which a channel is summed
    conv_bias: bool = True
    normed: bool = True  # what the last matrix reads
    scale: float = 1.0  # of x
    gate_scale: float = 1.0  # of z
    input_scale: float = 1.0  # of u
    write_scale: float = 1.0  # of b
    read_scale: float = 1.0  # of c
    step_scale: float = 1.0  # of t

    def __post_init__(self) -> None:
        for name in ("heads", "head", "groups", "state_size"):
            if not 1 <= getattr(self, name) <= MAX_SIZE:
                raise ConfigError(
                    f"mamba: expected a {name} of 1 to {MAX_SIZE}, got {getattr(self, name)}"
                )
        if not 1 <= self.kernel <= MAX_KERNEL:
            raise ConfigError(
                f"mamba: expected a kernel of 1 to {MAX_KERNEL} tokens, got {self.kernel}"
            )
        if self.heads % self.groups:
            raise ConfigError(
                f"mamba: expected a multiple of {self.groups} heads, as many for each group, got "
                f"{self.heads}"
            )
        for name in ("scale", *_SCALES):
            if not 0 < getattr(self, name) < inf:
                raise ConfigError(f"mamba: expected a {name} above 0, got {getattr(self, name)}")

    @property
    def columns(self) -> int:
        """Numbers of a token that the layer's last matrix reads; as many are in z."""
        return self.heads * self.head

    @property
    def scales(self) -> tuple[float, ...]:
        """Of z, u, b, c and t, each with that of x."""
        return tuple(self.scale * getattr(self, name) for name in _SCALES)

    @property
    def shared(self) -> int:
        """Numbers of b, or of c, of all groups."""
        return self.groups * self.state_size

    @property
    def channels(self) -> int:
        """Numbers of a token that are summed over tokens: all u, b and c."""
        return self.columns + 2 * self.shared

    @property
    def mixed(self) -> int:
        """Numbers of a token that are made of the stream: z, channels and t."""
        return self.columns + self.channels + self.heads

    @property
    def together(self) -> int:
        """Heads of a part: as many as go into a group's, up to four."""
        each = self.heads // self.groups
        return max(count for count in range(1, _TOGETHER + 1) if each % count == 0)

    @property
    def parts(self) -> int:
        """Into which the heads are cut, each of one worker."""
        return self.heads // self.together

    def heads_of(self, part: int) -> slice:
        """Return a part's heads."""
        return slice(part * self.together, (part + 1) * self.together)

    def channels_of(self, part: int) -> tuple[slice, slice, slice]:
        """Return where u of a part's heads, and b and c of their group, are among all channels."""
        width, group = self.together * self.head, part * self.groups // self.parts
        b = self.columns + group * self.state_size
        c = b + self.shared
        u = slice(part * width, (part + 1) * width)
        return u, slice(b, b + self.state_size), slice(c, c + self.state_size)

    def tensors(self, hidden: int, lanes: int) -> Shapes:
        """Return the shapes of its weights; see Operation."""
        del lanes
        shapes: Shapes = {
            Role.MAMBA_IN: (1, self.mixed, hidden),
            Role.MAMBA_CONV: (1, self.channels, 1, self.kernel),
            Role.MAMBA_CONV_BIAS: (1, self.channels),
            Role.MAMBA_DECAY: (1, self.heads),
            Role.MAMBA_STEP: (1, self.heads),
            Role.MAMBA_SKIP: (1, self.heads),
            Role.MAMBA_NORM: (1, self.columns),
            Role.MAMBA_OUT: (1, hidden, self.columns),
        }
        if not self.conv_bias:
            del shapes[Role.MAMBA_CONV_BIAS]
        if not self.normed:
            del shapes[Role.MAMBA_NORM]
        return shapes

    def buffers(self, room: Room) -> Buffers:
        """Return the shapes of what its phases leave for each other; see Operation."""
        kept = self.state()
        return {
            Buffer.MIXED: (1, room.width, self.mixed),
            Buffer.HEADS: (1, room.width, self.columns),
            Buffer.STATE: (self.parts, kept.numbers + kept.before * (kept.inputs - self.together)),
        }

    def state(self) -> State:
        """Return what a sequence keeps: of a part S of its heads; see Operation.

        A step takes u of the part's heads, b and c of their group, and t of the heads.
        """
        numbers = self.together * self.head
        inputs = numbers + 2 * self.state_size + self.together
        return State(self.parts, numbers * self.state_size, inputs, self.kernel - 1)

    def scratch(self, room: Room) -> int:
        """Return the floats of a worker that takes a part's steps; see Operation.

        Beside what every state needs, the channels of a token, and a head's numbers twice.
        """
        del room
        channels = self.together * self.head + 2 * self.state_size
        return self.state().scratch + pieces(channels, 2 * self.head)

    def native(self, room: Room) -> dict[str, Record]:
        """Return the struct's values; see Operation."""
        del room
        values = {name: getattr(self, name) for name in ("heads", "head", "groups", "kernel")}
        values |= {"together": self.together, "normed": self.normed, "state": self.state_size}
        return {"mamba": values | dict(zip(_SCALES, self.scales, strict=True))}
