"""The words that blocks exchange: in which order, whose they are, what they are called.

A kernel that keeps its words (Layout.kept_passes) leaves every one of a launch in memory. Here they
become arrays with one form for all kinds, so that two launches can be compared event by event.

Legend: P passes that are kept, E events of a kind in a pass, L lanes (one where a word is no
lane's), T rows of a pass, C words of a row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from monolane.cuda._layout import SHARED_ROLES, Layout
from monolane.cuda._program import Exchange, Op, Verb
from monolane.cuda._tables import share_tables
from monolane.model import Role
from monolane.plan import PhaseKind

Numbers = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float64]
Owners = npt.NDArray[np.int64]

NOBODY = -1  # who publishes what only fills a row up
_FORMATS: dict[str, Any] = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
_MADE = (Op.UPDATE, Op.PUBLISH_QKV, Op.ATTEND, Op.PUBLISH_HIDDEN)  # what belongs to the next event
WHOLE = (Exchange.CONTROL, Exchange.DECISION, Exchange.GUIDE)  # numbers that are no measure


@dataclass(frozen=True)
class Event:
    """One exchange of a pass."""

    what: Exchange
    turn: int  # among the events of its kind: the copy where its words are
    step: str  # the plan's name of the phase that publishes them

    @property
    def name(self) -> str:
        """As a record tells it."""
        return f"{self.what.name} of {self.step}"


@dataclass(frozen=True)
class Kind:
    """The words of one kind of exchange."""

    what: Exchange
    buffer: str  # as Params names it
    shape: tuple[int, ...]  # of a copy: [L, T, C], but for PARTIAL [L, S, T, H, C]
    # The block that publishes a word, or NOBODY; layers share rows out in some ways, by turns.
    owners: Owners  # [ways, L or 1, T or 1, C]

    def owners_in(self, turn: int) -> Owners:
        """Return the owners of one event's words: [L or 1, T or 1, C]."""
        found: Owners = self.owners[turn % len(self.owners)]
        return found

    def arrange(self, words: npt.NDArray[np.uint64], events: int) -> npt.NDArray[np.uint64]:
        """Return a buffer's words as [P, E, L, T, C]."""
        found = words.reshape(-1, events, *self.shape)
        if len(self.shape) == 5:
            found = np.moveaxis(found, 3, 4)  # [P, E, L, T, S, H, C]
            found = found.reshape(*found.shape[:4], -1)
        return found

    def numbers(self, values: Numbers, layout: Layout) -> Floats:
        """Return what values [.., C] stand for; what is no measure stays the number that it is."""
        if self.what in WHOLE:
            return values.astype(np.float64)
        if self.what is Exchange.CANDIDATES:
            found = values.astype(np.float64)
            found[..., ::2] = _of_keys(values[..., ::2])
            return found
        with np.errstate(invalid="ignore"):  # a word that nobody wrote may be anything
            found = np.ascontiguousarray(values).view(np.float32).astype(np.float64)
            if self.what is Exchange.QKV:
                c = layout.plan.config
                cached = (c.num_heads + c.num_kv_heads) // c.num_lanes * c.head_dim  # values
                kind = _FORMATS.get(layout.plan.dtype, np.float16)
                halves = np.ascontiguousarray(values[..., cached:].astype(np.uint16))
                found[..., cached:] = halves.view(kind).astype(np.float64)
        return found


def _of_keys(keys: Numbers) -> Floats:
    """Undo `ordered_key` of choose.cuh; 0, no candidate, becomes minus infinity."""
    bits = np.where(keys & 0x80000000, keys & 0x7FFFFFFF, ~keys).astype(np.uint32)
    with np.errstate(invalid="ignore"):
        values = bits.view(np.float32).astype(np.float64)
    values[keys == 0] = -np.inf
    return values


def kinds_of(layout: Layout) -> dict[Exchange, Kind]:
    """Return the kinds of words that a kernel publishes, on one device."""
    c, t, blocks = layout.plan.config, layout.width, layout.blocks
    lanes, splits, workers = c.num_lanes, layout.plan.splits, layout.plan.groups.workers
    heads, kv_heads = c.num_heads // lanes, c.num_kv_heads // lanes
    ways = range(layout.share_layers)
    tables = [dict(zip([*SHARED_ROLES, "ATTEND"], share_tables(layout, i), strict=False))
              for i in ways]  # fmt: skip
    lane_of = np.arange(workers) // blocks

    def owned(columns: int, *parts: tuple[Any, int]) -> Owners:
        """By way and lane, from shares that begin at these columns."""
        found = np.full((len(ways), lanes, 1, columns), NOBODY, np.int64)
        for way, (share, first) in itertools.product(ways, parts):
            for worker, (begin, end) in enumerate(tables[way][share].tolist()):
                found[way, lane_of[worker], :, first + begin : first + end] = worker
        return found

    stream = owned(c.hidden_size, (Role.O, 0))
    keys = heads * c.head_dim
    values = keys + kv_heads * c.head_dim
    qkv = owned(values + kv_heads * c.head_dim, (Role.Q, 0), (Role.K, keys), (Role.V, values))
    inner = c.intermediate_size // lanes
    hidden = owned(inner + inner % 2, (Role.GATE, 0))
    if inner % 2:
        hidden[..., -1] = hidden[..., -2]
    width = c.head_dim + 2
    partial = owned(kv_heads * splits, ("ATTEND", 0))[0].reshape(lanes, 1, kv_heads, splits)
    partial = np.repeat(partial.swapaxes(2, 3), heads // kv_heads, axis=3)
    partial = np.repeat(partial[..., None], width + width % 2, axis=4)
    partial[..., width:] = NOBODY
    partial_shape = (lanes, splits, t, heads, width + width % 2)
    squares = np.full((lanes, 1, blocks + blocks % 2), NOBODY, np.int64)
    squares[:, 0, :blocks] = np.arange(workers).reshape(lanes, blocks)
    vocab = np.full((1, 1, c.vocab_size + c.vocab_size % 2), NOBODY, np.int64)
    head_rows = 0 if layout.plan.shared_head else c.vocab_size // lanes
    for worker, (begin, end) in enumerate(tables[0][Role.HEAD].tolist()):
        vocab[..., lane_of[worker] * head_rows + begin : lane_of[worker] * head_rows + end] = worker
    first = np.zeros((1, 1, 1, 1), np.int64)
    x = Exchange
    listed = [
        Kind(x.STREAM, "stream_words", (lanes, t, c.hidden_size), stream),
        Kind(x.SQUARES, "square_words", (lanes, t, blocks + blocks % 2), squares[None]),
        Kind(x.GAINED, "gained_words", (lanes, t, blocks + blocks % 2), squares[None]),
        Kind(x.QKV, "qkv_words", (lanes, t, qkv.shape[-1]), qkv),
        Kind(x.HEAD_SQUARES, "head_square_words", (lanes, t, 2 * (blocks + blocks % 2)),
             np.tile(squares, 2)[None]),
        Kind(x.PARTIAL, "partial_words", partial_shape, partial.reshape(1, lanes, 1, -1)),
        Kind(x.HIDDEN, "hidden_words", (lanes, t, hidden.shape[-1]), hidden),
        Kind(x.LANES, "raw_words", (lanes, t, c.hidden_size), stream),
        Kind(x.JOINED, "joined_words", (lanes, t, c.hidden_size), stream),
        Kind(x.CANDIDATES, "candidate_words", (1, t, 2 * workers),
             np.repeat(np.arange(workers), 2)[None, None, None]),
        Kind(x.CONTROL, "control_words", (1, 1, 1), first),
        Kind(x.LOGITS, "logit_words", (1, t, vocab.shape[-1]), vocab[None]),
        Kind(x.DECISION, "decision_words", (1, t, 1),
             (np.arange(t) % workers)[None, None, :, None]),
        Kind(x.GUIDE, "verdict_words", (1, t + t % 2, 1), first),
    ]  # fmt: skip
    published = {event.what for event in events_of(layout)}
    return {kind.what: kind for kind in listed if kind.what in published}


def events_of(layout: Layout) -> list[Event]:
    """Return the events of a pass, in the order of the program."""
    return list(dict.fromkeys(_events(layout)))


def _events(layout: Layout) -> Iterator[Event]:
    program = layout.program
    for step in program.steps:
        module = 0 if step.kind is PhaseKind.OUT else 1
        for op in step.ops:
            event = step.event + (op in _MADE)
            for touch in program.touches(op):
                what = touch.what
                if touch.verb is not Verb.PUBLISH or what is None:
                    continue
                if what in (Exchange.LANE, Exchange.ACTIVATIONS):  # not stamped
                    continue
                turn = program.slot(what, event=event, number=0, layer=step.layer, module=module)
                yield Event(what, turn, step.name)


# ---- out of memory -------------------------------------------------------------------------------
@dataclass(frozen=True)
class Words:
    """All words of a launch: value and stamp of each, [P, E, L, T, C] by kind."""

    values: dict[Exchange, Numbers]
    stamps: dict[Exchange, Numbers]


def arrange(layout: Layout, memory: dict[str, npt.NDArray[np.uint64]]) -> Words:
    """Return the words of buffers, by their names in Params."""
    values, stamps = {}, {}
    for what, kind in kinds_of(layout).items():
        count = layout.words[kind.buffer]
        words = kind.arrange(memory[kind.buffer][:count], layout.program.events(what))
        values[what] = (words & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        stamps[what] = (words >> np.uint64(32)).astype(np.uint32)
    return Words(values, stamps)


def column_name(kind: Kind, layout: Layout, column: int) -> str:
    """Say what a word of a row is."""
    c = layout.plan.config
    match kind.what:
        case Exchange.QKV:
            heads, kv_heads = c.num_heads // c.num_lanes, c.num_kv_heads // c.num_lanes
            head, dimension = divmod(column, c.head_dim)
            for name, count in (("query", heads), ("key", kv_heads), ("value", kv_heads)):
                if head < count:
                    return f"{name} head {head}, dimension {dimension}"
                head -= count
        case Exchange.PARTIAL:
            heads, width = kind.shape[3], kind.shape[4]
            split, rest = divmod(column, heads * width)
            head, at = divmod(rest, width)
            ends = {c.head_dim: "maximum", c.head_dim + 1: "total"}
            return f"split {split}, head {head}, {ends.get(at, f'sum of dimension {at}')}"
        case Exchange.CANDIDATES:
            return "token" if column % 2 else "logit"
        case Exchange.SQUARES:
            return f"block {column} of the lane"
    return f"column {column}"
