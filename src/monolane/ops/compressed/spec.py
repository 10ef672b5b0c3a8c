"""Attention within a window, and to compressed entries of what lies before (DeepSeek-V4).

All heads share one key a token, which is its value too. With x the normed stream of a token, H
heads of width h of which the last r numbers are turned, and norm' a norm without scales:

    c = norm(q_down(x))                  # [Q]
    q = turned(norm'(q(c)))              # H heads
    k = turned(norm(kv_down(x)))         # [h], key and value of the last ``window`` tokens
    y = what attention sums up of the values, and turned back by the query's own position
    y = o(o_down of each group of heads)  # groups of H / g heads, R numbers of each

Each head has a sink. Where there is a ``compressor``, attention sees as well an entry for each
``ratio`` tokens m, key and value too. With u = compress_kv(x) and v = compress_gate(x) + bias, a
row of which each place in its m tokens has:

    entry = turned(norm(sum over its tokens of softmax(v) u))   # of each number by itself

An entry is turned as its first token is, and seen from its last token on. Where entries
``overlap``, u and v have 2h numbers: an entry sums the last h of its own tokens and the first h of
those of the entry before, with one softmax over all of them. An index, where there is one, has
heads of d numbers and entries of its own that are made likewise; a token sees the ``chosen``
entries with the largest

    sum over the index's heads of w_i max(0, q_i . entry / sqrt(d)),
    q = turned(index_q(c)), w = index_weights(x) / sqrt(heads)

of equal ones the first. Layers without entries turn by the config's local rotary, others by its
main one.

Source: the paper of DeepSeek-V4, sections 2.3.1 and 2.3.2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from monolane._structs import Struct
from monolane.errors import ConfigError
from monolane.ops._names import Role, Shapes
from monolane.ops._spec import MAX_SIZE, Buffers, Operation, Record, Room

# What entries are made of, and those of the index.
ENTRIES = (Role.COMPRESS_KV, Role.COMPRESS_GATE, Role.COMPRESS_BIAS, Role.COMPRESS_NORM)
INDEX_ENTRIES = (Role.INDEX_KV, Role.INDEX_GATE, Role.INDEX_BIAS, Role.INDEX_KV_NORM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressor:
    """How earlier tokens become entries. ConfigError if it makes no sense."""

    ratio: int  # m, tokens of an entry
    overlap: bool = False
    # Of the index that chooses entries; 0: there is none, and all are seen.
    index_heads: int = 0
    index_width: int = 0  # d
    chosen: int = 0

    def __post_init__(self) -> None:
        index = (self.index_heads, self.index_width, self.chosen)
        if not 1 <= self.ratio <= MAX_SIZE or not all(0 <= x <= MAX_SIZE for x in index):
            raise ConfigError(
                f"compressor: expected a ratio of 1 to {MAX_SIZE}, and sizes of an index up to "
                f"that, got {self.ratio} and {index}"
            )
        if any(index) != all(index):
            raise ConfigError(f"compressor: expected all sizes of an index or none, got {index}")

    @property
    def series(self) -> int:
        """How many numbers of a token there are for each of an entry: 2 where these overlap."""
        return 2 if self.overlap else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed(Operation):
    """Such attention of one layer. ConfigError if its sizes make no sense."""

    computed_by: ClassVar[tuple[str, ...]] = ("reference",)
    structs: ClassVar[Mapping[str, Struct]] = {}

    heads: int  # H
    width: int  # h
    turned: int  # r
    query_rank: int  # Q
    window: int  # tokens whose keys are seen as they are, the query's own included
    groups: int  # g, of heads
    group_rank: int  # R
    compressor: Compressor | None = None

    def __post_init__(self) -> None:
        for name in ("heads", "width", "query_rank", "window", "groups", "group_rank"):
            if not 1 <= getattr(self, name) <= MAX_SIZE:
                raise ConfigError(
                    f"compressed: expected {name} of 1 to {MAX_SIZE}, got {getattr(self, name)}"
                )
        widths = [self.width]
        if self.compressor is not None and self.compressor.index_width:
            widths.append(self.compressor.index_width)
        if self.turned % 2 or not 2 <= self.turned <= min(widths):
            raise ConfigError(
                f"compressed: expected an even part of 2 to {min(widths)} numbers that is turned, "
                f"got {self.turned}"
            )
        if self.heads % self.groups:
            raise ConfigError(
                f"compressed: expected groups that divide {self.heads} heads, got {self.groups}"
            )

    def tensors(self, hidden: int, lanes: int) -> Shapes:
        """Return the shapes of its weights; see Operation."""
        del lanes
        inner, rows = self.heads * self.width, self.groups * self.group_rank
        shapes: Shapes = {
            Role.Q_DOWN: (1, self.query_rank, hidden),
            Role.Q_NORM: (1, self.query_rank),
            Role.Q: (1, inner, self.query_rank),
            Role.KV_DOWN: (1, self.width, hidden),
            Role.K_NORM: (1, self.width),
            Role.SINKS: (1, self.heads),
            Role.O_DOWN: (1, rows, inner // self.groups),
            Role.O: (1, hidden, rows),
        }
        if self.compressor is None:
            return shapes
        shapes |= self._entries(ENTRIES, self.width, hidden)
        if self.compressor.index_heads:
            heads, width = self.compressor.index_heads, self.compressor.index_width
            shapes |= self._entries(INDEX_ENTRIES, width, hidden)
            shapes[Role.INDEX_Q] = (1, heads * width, self.query_rank)
            shapes[Role.INDEX_WEIGHTS] = (1, heads, hidden)
        return shapes

    def _entries(self, roles: tuple[Role, ...], width: int, hidden: int) -> Shapes:
        assert self.compressor is not None
        rows = self.compressor.series * width
        bias = (1, self.compressor.ratio, rows)
        each = ((1, rows, hidden), (1, rows, hidden), bias, (1, width))
        return dict(zip(roles, each, strict=True))

    def buffers(self, room: Room) -> Buffers:
        """Return nothing: no plan has it yet; see Operation."""
        del room
        return {}

    def native(self, room: Room) -> dict[str, Record]:
        """Return nothing: no native executor computes it yet; see Operation."""
        del room
        return {}
