"""The gated delta rule (arXiv:2412.06464): a state of fixed size in place of keys and values.

With x the normed stream of a token, of G key heads each with U / G value heads:

    q, k, v = delta_qkv(x)         # [G, d_k], [G, d_k], [U, d_v]: the channels
    z = delta_z(x)                 # [U, d_v]
    b, a = delta_gates(x)          # [U], [U]; rows go by key heads, of each b and then a
    q, k, v = silu(each channel's sum over its last C numbers, this token's the last, times conv)
    q, k = q / |q| / sqrt(d_k), k / |k|     # |x| = sqrt(sum of x^2 + 1e-6)
    of each value head, with the state S [d_k, d_v] and q, k of its key head:
        S = exp(-exp(decay) * softplus(a + step)) * S
        S = S + k (sigmoid(b) * (v - k S))  # an outer product: what S says of k becomes v, in part
        o = norm(q S) * silu(z)             # the norm's scale [d_v] is of all heads, without offset
    y = delta_out(all o)

A state is float32, whatever the weights are. Each token's step is taken by itself, in order, so
that bits do not depend on how tokens are fed; the chunked form, which is other arithmetic, is not
used. What a sequence is kept as is S and the last C - 1 inputs of the channels.

Value heads lie behind those of the key heads before, or ``tiled``, as GGUF files may have them: of
each key head the first, then of each the second, ... So rows of v and z, columns of delta_out,
channels of conv, decays and steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from monolane._structs import Field, Struct
from monolane.errors import ConfigError
from monolane.ops._names import Buffer, Role, Shapes
from monolane.ops._spec import MAX_SIZE, Buffers, Operation, Room, State, pieces

# Published models have 4. A cache keeps so many inputs of each channel, less one.
MAX_KERNEL = 64

_STRUCT = Struct(
    "PlanDelta",
    (
        Field("key_heads", "i32", "G"),
        Field("value_heads", "i32", "U"),
        Field("key", "i32", "d_k: width of its queries and keys"),
        Field("value", "i32", "d_v: width of its values"),
        Field("kernel", "i32", "C: tokens over which its channels are summed"),
        Field("tiled", "i32", "1: value heads lie first of each key head, then second, ..."),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta(Operation):
    """The sizes of the layers with a gated delta rule. ConfigError if they make no sense."""

    structs: ClassVar[Mapping[str, Struct]] = {"delta": _STRUCT}

    key_heads: int  # G
    value_heads: int  # U, as many for each key head
    key: int  # d_k, of a query and a key
    value: int  # d_v
    kernel: int  # C, tokens over which a channel is summed
    tiled: bool = False  # value heads lie first of each key head, then second, ...

    def __post_init__(self) -> None:
        for name in ("key_heads", "value_heads", "key", "value"):
            if not 1 <= getattr(self, name) <= MAX_SIZE:
                raise ConfigError(
                    f"delta: expected a {name} of 1 to {MAX_SIZE}, got {getattr(self, name)}"
                )
        if not 1 <= self.kernel <= MAX_KERNEL:
            raise ConfigError(
                f"delta: expected a kernel of 1 to {MAX_KERNEL} tokens, got {self.kernel}"
            )
        if self.value_heads % self.key_heads:
            raise ConfigError(
                f"delta: expected a multiple of {self.key_heads} value heads, as many for each "
                f"key head, got {self.value_heads}"
            )

    def tensors(self, hidden: int, lanes: int) -> Shapes:
        """Return the shapes of its weights; see Operation."""
        return {
            Role.DELTA_QKV: (1, self.channels, hidden),
            Role.DELTA_Z: (1, self.columns, hidden),
            Role.DELTA_IN: (1, self.channels + self.columns, hidden),
            Role.DELTA_GATES: (1, 2 * self.value_heads, hidden),
            Role.DELTA_BETA: (1, self.value_heads, hidden),
            Role.DELTA_ALPHA: (1, self.value_heads, hidden),
            Role.DELTA_CONV: (1, self.channels, 1, self.kernel),
            Role.DELTA_DECAY: (1, self.value_heads),
            Role.DELTA_STEP: (1, self.value_heads),
            Role.DELTA_NORM: (1, self.value),
            Role.DELTA_OUT: (1, hidden, self.columns),
        }

    def buffers(self, room: Room) -> Buffers:
        """Return the shapes of what its phases leave for each other; see Operation."""
        kept = self.numbers + (self.kernel - 1) * self.channels
        return {
            Buffer.MIXED: (1, room.width, self.mixed),
            Buffer.HEADS: (1, room.width, self.columns),
            Buffer.STATE: (self.key_heads, kept // self.key_heads),
        }

    @property
    def each(self) -> int:
        """Value heads of a key head, U / G."""
        return self.value_heads // self.key_heads

    def of_one_key_head(self) -> "Delta":
        """Return the sizes of one key head and its value heads."""
        return replace(self, key_heads=1, value_heads=self.each, tiled=False)

    def values_of(self, head: int) -> list[int]:
        """Return where the value heads of a key head are among all."""
        if self.tiled:
            return list(range(head, self.value_heads, self.key_heads))
        return list(range(head * self.each, (head + 1) * self.each))

    @property
    def channels(self) -> int:
        """Numbers of a token that are summed over tokens: of all queries, keys and values."""
        return 2 * self.key_heads * self.key + self.columns

    def channels_of(self, head: int) -> tuple[slice, ...]:
        """Return where q, k and each v of a key head are among all channels."""
        queries = self.key_heads * self.key
        q, k = (slice(at + head * self.key, at + (head + 1) * self.key) for at in (0, queries))
        values = (2 * queries + i * self.value for i in self.values_of(head))
        return q, k, *(slice(at, at + self.value) for at in values)

    @property
    def columns(self) -> int:
        """Numbers of a token that the layer's last matrix reads; as many are in z."""
        return self.value_heads * self.value

    @property
    def mixed(self) -> int:
        """Numbers of a token that are made of the stream: channels, z, b and a."""
        return self.channels + self.columns + 2 * self.value_heads

    @property
    def numbers(self) -> int:
        """Numbers of a layer's states."""
        return self.value_heads * self.key * self.value

    def scratch(self, room: Room) -> int:
        """Return the floats of a worker that takes a key head's steps; see Operation.

        Beside what every state needs, the channels of a token and what a value head says.
        """
        del room
        return self.state().scratch + pieces(self.channels // self.key_heads, self.value)

    def state(self) -> State:
        """Return what a sequence keeps: of a key head S of its value heads; see Operation.

        A step takes the channels of a token and, of each value head, b and then a.
        """
        channels, gates = self.channels // self.key_heads, 2 * self.each
        numbers = self.numbers // self.key_heads
        return State(self.key_heads, numbers, channels + gates, self.kernel - 1)
