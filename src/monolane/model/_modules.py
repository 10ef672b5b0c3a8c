"""What executors read of a layer: a list of modules, each an operation with sizes of its own.

A config says sizes as families do, for all layers alike, and what differs in one of them. Here both
are put together: whoever computes a layer asks its modules, and never the config for a size.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from monolane.model._delta import Delta
from monolane.model._experts import Experts
from monolane.model._latent import Latent
from monolane.model._reduce import Reduce

LayerRotary = Literal["main", "local", "none"]


class QkNorm(StrEnum):
    """Over what the norm of queries and keys goes, before they are turned."""

    HEAD = "head"  # each head by itself, all with one scale [h]
    ALL = "all"  # all heads of a token, of all lanes, at once: scales [H*h] and [K*h]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Attention of one layer; sizes count over all lanes."""

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

    def parameters(self, hidden: int) -> int:
        """Return the number of weights, for a stream of so many numbers."""
        rows = self.query_rows + 2 * self.key_rows
        count = rows * hidden if self.latent is None else self._latent_parameters(hidden)
        count += (self.out_columns + self.out_bias) * hidden + self.bias * rows
        normed = {None: 0, QkNorm.HEAD: 2, QkNorm.ALL: self.heads + self.kv_heads}[self.qk_norm]
        return count + normed * self.head_dim + self.sinks * self.heads

    def _latent_parameters(self, hidden: int) -> int:
        latent = self.latent
        assert latent is not None
        queries = self.heads * latent.head
        ups = self.heads * (latent.plain + latent.value) * latent.rank
        count = latent.cached * hidden + latent.rank + ups
        if latent.query_rank is None:
            return count + queries * hidden
        return count + latent.query_rank * (queries + hidden + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """A dense MLP of one layer."""

    inner: int  # F, over all lanes

    def parameters(self, hidden: int) -> int:
        """Return the number of weights, for a stream of so many numbers."""
        return 3 * self.inner * hidden


Operation = Attention | Delta | Mlp | Experts


@dataclass(frozen=True, slots=True)
class Module:
    """An operation, and the rule by which what it says joins the streams."""

    operation: Operation
    reduce: Reduce
    scale: float  # of what a stream gains from it, reduced and, where it is normed, normed
