"""Attention: which heads there are, what they see, and what a cache keeps of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Literal

from monolane._structs import Field, Struct
from monolane.ops._names import Buffer, Role, Shapes
from monolane.ops._spec import Buffers, Operation, Record, Room, pieces
from monolane.ops.attention.index import Index
from monolane.ops.attention.latent import Latent
from monolane.ops.attention.splits import choose_splits
from monolane.ops.attention.temperature import Temperature

# Of a KV head, for which attention to a chunk of keys is asked at once: whole tiles of 8, 6 and 4,
# whose partial sums stay in the first-level cache.
_QUERIES = 24

LayerRotary = Literal["main", "local", "none"]


class QkNorm(StrEnum):
    """Over what the norm of queries and keys goes, before they are turned."""

    HEAD = "head"  # each head by itself, all with one scale [h]
    ALL = "all"  # all heads of a token, of all lanes, at once: scales [H*h] and [K*h]


# Weights of what a cache keeps.
_OF_KEYS = (Role.K, Role.V, Role.K_BIAS, Role.V_BIAS, Role.K_NORM)
_QK_NORMS = (None, QkNorm.HEAD, QkNorm.ALL)
# Those that a config has; a layer's is one of them, or none.
ROTARIES: tuple[LayerRotary, ...] = ("main", "local")
_STRUCT = Struct(
    "PlanAttention",
    (
        Field("heads", "i32", "H, over all lanes"),
        Field("kv_heads", "i32", "K, over all lanes; 1 where latents are cached"),
        Field("head_dim", "i32", "h, of a cached key and a query that meets it; of latents R + r"),
        Field("splits", "i32", "S: parts into which the keys of a KV head are cut"),
        Field("keys_of", "i32", "the layer whose cached keys and values it reads; -1: its own"),
        Field("window", "i32", "keys visible to a query, itself included; 0: all"),
        Field("chunked", "i32", "1: those of its own chunk of so many positions, up to it"),
        Field("rotary", "PlanRotary", "what turns queries and keys; kNone: nothing"),
        Field("gate", "i32", "1: of each head Q has rows of the query, then of a gate"),
        Field("qk_norm", "QkNorm", "what of Q and K is normed"),
        Field("norm_turned", "i32", "1: heads are normed behind rotary, else before"),
        Field("qk_unscaled", "i32", "1: the norm of Q and K has no scales"),
        Field("value_norm", "i32", "1: each head's values are normed, without scales"),
        Field("key_is_value", "i32", "1: values are the keys, neither normed nor turned"),
        Field("at_once", "i32", "tokens whose attention to a chunk of keys is asked for at once"),
        Field("scale", "f32", "of the scores"),
        Field("cap", "f32", "c: scores, scaled, become c tanh(score / c); 0: they stay"),
        Field("temperature", "f32", "0, or queries times 1 + it ln(1 + position / context)"),
        Field("temperature_context", "i32", "positions; the quotient is rounded down"),
        Field("temperature_ahead", "i32", "added to a position first"),
    ),
)
_LATENT = Struct(
    "PlanLatent",
    (
        Field("rank", "i32", "R: what of a cached key is its value; 0: values are cached"),
        Field("query_rank", "i32", "Q: what queries are made of; 0: of the stream"),
        Field("norm_eps", "f32", "of the norms of latents"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(Operation):
    """Attention of one layer; sizes count over all lanes."""

    structs: ClassVar[Mapping[str, Struct]] = {"attention": _STRUCT, "latent": _LATENT}
    enums: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "QkNorm": tuple(str(norm or "none") for norm in _QK_NORMS)
    }

    heads: int  # H, query heads
    kv_heads: int  # K
    head_dim: int  # h, of a query and a key
    window: int | None  # keys visible to a query, itself included; None: all before it
    rotary: LayerRotary  # which of the config's rotaries turns queries and keys, if any
    qk_norm: QkNorm | None
    bias: bool  # of Q, K and V
    out_bias: bool
    sinks: bool  # a score of its own for each head, without a value
    gate: bool  # Q has rows of the query, then as many of a gate, of each head
    scale: float  # of the scores
    latent: Latent | None  # what keys and values are made of, in place of K and V
    keys_of: int | None = None  # the earlier layer whose keys and values it reads; None: its own
    value_norm: bool = False  # values are normed, each head by itself and without scales
    key_is_value: bool = False  # values are what keys are before they are normed and turned
    cap: float | None = None  # c: scores, scaled, become c tanh(score / c)
    norm_turned: bool = False  # heads of queries and keys are normed behind the rotary, not before
    temperature: Temperature | None = None  # a factor of queries that grows with their position
    chunked: bool = False  # the window is a chunk of positions, which does not slide
    qk_unscaled: bool = False  # the norm of queries and keys has no scales
    index: Index | None = None  # what chooses the keys that it sees
    index_of: int | None = None  # the earlier layer whose index chooses; None: its own

    @property
    def cached_heads(self) -> int:
        """KV heads of a cache, over all lanes; all heads share a latent."""
        return self.kv_heads if self.latent is None else 1

    @property
    def cached_width(self) -> int:
        """Numbers of a cached key; a latent is a key and, without its last part, a value."""
        return self.head_dim if self.latent is None else self.latent.cached

    @property
    def cached_lists(self) -> int:
        """Vectors that a cache keeps of a token and a KV head: key and value, or both in one."""
        return 2 if self.latent is None else 1

    @property
    def kept_lists(self) -> int:
        """Of these, those that are its own."""
        return self.cached_lists if self.keys_of is None else 0

    @property
    def turned_width(self) -> int:
        """Numbers of a query and a key of which a rotary turns a part, or all."""
        return self.head_dim if self.latent is None else self.latent.turned

    @property
    def value_width(self) -> int:
        """Numbers of what attention sums up of a head."""
        return self.head_dim if self.latent is None else self.latent.rank

    @property
    def out_columns(self) -> int:
        """Columns of the matrix behind attention, over all lanes: the values of all heads."""
        return self.heads * (self.head_dim if self.latent is None else self.latent.value)

    @property
    def query_rows(self) -> int:
        """Rows of Q, over all lanes: the queries of all heads, and their gates."""
        return self.heads * self.head_dim * (2 if self.gate else 1)

    @property
    def key_rows(self) -> int:
        """Rows of K, and of V, over all lanes."""
        return self.kv_heads * self.head_dim

    def tensors(self, hidden: int, lanes: int) -> Shapes:
        """Return the shapes of its weights; see Operation."""
        if self.latent is not None:
            return self._latent_tensors(hidden)
        return self._plain_tensors(hidden, lanes)

    def buffers(self, room: Room) -> Buffers:
        """Return the shapes of what its phases leave for each other; see Operation."""
        lanes, width = room.lanes, room.width
        heads, kv_heads, key = self.heads // lanes, self.cached_heads // lanes, self.cached_width
        raw = heads + 2 * kv_heads if room.tiled else 0  # see plan/qkv.py
        unnormed = (heads + kv_heads if self.qk_norm is QkNorm.ALL else raw) * key
        latent = self.latent
        latents = 0 if latent is None else (latent.query_rank or 0) + latent.cached
        return {
            Buffer.QUERY: (lanes, width, heads * key),
            Buffer.KEY_VALUE: (self.cached_lists, lanes, room.context, kv_heads, key),
            Buffer.ATTENTION: (lanes, self.splits(room), width, heads, key + 2),
            Buffer.UNNORMED: (lanes, width, unnormed),
            Buffer.LATENTS: (1, width, latents),
            Buffer.HEADS: (1, width, 0 if latent is None else self.out_columns),
            Buffer.QUERY_GATE: (lanes, width, heads * key if self.gate else 0),
        }

    def native(self, room: Room) -> dict[str, Record]:
        """Return the values of its structs; see Operation."""
        values: Record = {
            "heads": self.heads,
            "kv_heads": self.cached_heads,
            "head_dim": self.cached_width,
            "splits": self.splits(room),
            "keys_of": -1 if self.keys_of is None else self.keys_of,
            "window": self.window or 0,
            "chunked": self.chunked,
            "rotary": -1 if self.rotary == "none" else ROTARIES.index(self.rotary),
            "gate": self.gate,
            "qk_norm": _QK_NORMS.index(self.qk_norm),
            "norm_turned": self.norm_turned,
            "qk_unscaled": self.qk_unscaled,
            "value_norm": self.value_norm,
            "key_is_value": self.key_is_value,
            "at_once": self._at_once,
            "scale": self.scale,
            "cap": self.cap or 0.0,
            "temperature": 0.0 if self.temperature is None else self.temperature.growth,
            "temperature_context": 1 if self.temperature is None else self.temperature.context,
            "temperature_ahead": 0 if self.temperature is None else self.temperature.ahead,
        }
        if (latent := self.latent) is None:
            return {"attention": values}
        rank, query_rank = latent.rank, latent.query_rank or 0
        sizes = {"rank": rank, "query_rank": query_rank, "norm_eps": latent.norm_eps}
        return {"attention": values, "latent": sizes}

    def scratch(self, room: Room) -> int:
        """Return the floats of a worker; see Operation.

        They are the partial sums of the queries that are asked for at once; where all heads are
        normed as one, those of a token; where keys are latents, one of these.
        """
        del room
        queries = self._at_once * (self.heads // self.cached_heads)
        normed = self.heads * self.head_dim if self.qk_norm is QkNorm.ALL else 0
        return max(pieces(queries * (self.cached_width + 2)), pieces(normed))

    @property
    def _at_once(self) -> int:
        return max(1, _QUERIES // (self.heads // self.cached_heads))

    def splits(self, room: Room) -> int:
        """Return S, into how many parts the keys of each KV head are cut for a group's workers."""
        return choose_splits(room.group_lanes * (self.cached_heads // room.lanes), room.workers)

    def _plain_tensors(self, hidden: int, lanes: int) -> Shapes:
        rows, each = self.key_rows // lanes, self.qk_norm is QkNorm.HEAD
        shapes: Shapes = {
            Role.Q: (lanes, self.query_rows // lanes, hidden),
            Role.K: (lanes, rows, hidden),
            Role.V: (lanes, rows, hidden),
        }
        if self.bias:
            shapes[Role.Q_BIAS] = (lanes, self.query_rows // lanes)
            shapes |= {Role.K_BIAS: (lanes, rows), Role.V_BIAS: (lanes, rows)}
        if self.qk_norm is not None and not self.qk_unscaled:
            shapes[Role.Q_NORM] = (1, self.head_dim * (1 if each else self.heads))
            shapes[Role.K_NORM] = (1, self.head_dim * (1 if each else self.kv_heads))
        if self.keys_of is not None:
            shapes = {role: shape for role, shape in shapes.items() if role not in _OF_KEYS}
        elif self.key_is_value:
            del shapes[Role.V]
        elif lanes == 1:
            shapes[Role.QKV] = (1, self.query_rows + 2 * self.key_rows, hidden)
        return shapes | self._behind(hidden, lanes)

    def _latent_tensors(self, hidden: int) -> Shapes:
        latent = self.latent
        assert latent is not None
        shapes: Shapes = {}
        if latent.query_rank is not None:
            shapes[Role.Q_DOWN] = (1, latent.query_rank, hidden)
        shapes[Role.KV_DOWN] = (1, latent.cached, hidden)
        shapes[Role.Q] = (1, self.heads * latent.head, latent.query_rank or hidden)
        if latent.query_rank is not None:
            shapes[Role.Q_NORM] = (1, latent.query_rank)
        shapes[Role.K_NORM] = (1, latent.rank)
        shapes[Role.K_UP] = (self.heads, latent.rank, latent.plain)
        shapes[Role.V_UP] = (self.heads, latent.value, latent.rank)
        shapes[Role.KV_UP] = (1, self.heads * (latent.plain + latent.value), latent.rank)
        if self.index is not None and self.index_of is None:
            heads, width = self.index.heads, self.index.width
            shapes[Role.INDEX_Q] = (1, heads * width, latent.query_rank or hidden)
            shapes[Role.INDEX_K] = (1, width, hidden)
            shapes |= {Role.INDEX_NORM: (1, width), Role.INDEX_NORM_BIAS: (1, width)}
            shapes[Role.INDEX_WEIGHTS] = (1, heads, hidden)
        return shapes | self._behind(hidden, 1)

    def _behind(self, hidden: int, lanes: int) -> Shapes:
        sinks: Shapes = {Role.SINKS: (lanes, self.heads // lanes)} if self.sinks else {}
        bias: Shapes = {Role.O_BIAS: (1, hidden)} if self.out_bias else {}
        return sinks | {Role.O: (lanes, hidden, self.out_columns // lanes)} | bias
