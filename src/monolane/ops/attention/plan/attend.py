"""ATTEND: partial attention of (lane, KV head, split), all query heads of a KV head together."""

import numpy as np
import numpy.typing as npt

from monolane.model import Attention
from monolane.ops._names import Buffer
from monolane.ops.attention.plan.qkv import finish_raw, reads_raw
from monolane.plan.parts import (
    Builder,
    Floats,
    Kind,
    Part,
    Phase,
    PhaseKind,
    Plan,
    Scope,
    Share,
    Touches,
    Worker,
    own,
    split,
)
from monolane.reference import cap_logits


def _build(builder: Builder, layer: int, place: int) -> tuple[Phase, ...]:
    del place
    attention = builder.config.attention(layer)
    groups, keys = builder.groups, _keys_of(attention, layer)
    both = own(Buffer.QUERY, layer), own(Buffer.KEY_VALUE, keys, keys)
    raw = reads_raw(builder.config, builder.device, layer)
    heads = groups.lanes_each * (attention.cached_heads // groups.lanes)
    units = heads * attention.splits(builder.room)
    return (
        builder.phase(
            PhaseKind.ATTEND,
            layer,
            units=Share(Scope.GROUP, split(units, builder.groups.workers_each)),
            reads=(own(Buffer.UNNORMED, layer),) if raw else both,
            writes=(own(Buffer.ATTENTION, layer),),
        ),
    )


def _keys_of(attention: Attention, layer: int) -> int:
    """Return the layer whose keys and values it reads."""
    return layer if attention.keys_of is None else attention.keys_of


def _order(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    del plan, layer
    return (PhaseKind.ATTEND,)


def _touches(plan: Plan, layer: int) -> Touches:
    if reads_raw(plan.config, plan.device, layer):
        return Touches((Buffer.UNNORMED,), (Buffer.ATTENTION,))
    return Touches((Buffer.QUERY, Buffer.KEY_VALUE), (Buffer.ATTENTION,))


def _units(plan: Plan, layer: int) -> int:
    heads = plan.config.attention(layer).cached_heads // plan.config.num_lanes
    return plan.groups.lanes_each * heads * plan.splits_of(layer)


def _keys(plan: Plan, phase: Phase, width: int, length: int) -> tuple[int, int]:
    """Return the bytes of the keys and values that are read, and the products with them."""
    attention = plan.config.attention(phase.layer)
    window = attention.window or length
    keys = min(length, window + width - 1)  # that at least one of the tokens sees
    seen = sum(min(length - i, window) for i in range(width))  # pairs of token and key
    return (
        attention.cached_lists * keys * attention.cached_heads * plan.key_bytes(phase.layer),
        seen * attention.heads * (attention.cached_width + attention.value_width),
    )


def _run(worker: Worker, phase: Phase) -> None:
    assert phase.units is not None
    config, splits = worker.plan.config, worker.plan.splits_of(phase.layer)
    kv_heads = config.attention(phase.layer).cached_heads // config.num_lanes
    for unit in range(*phase.units.of(worker.index)):
        head, part = divmod(unit, splits)
        lane, kv_head = worker.lanes[head // kv_heads], head % kv_heads
        _attend(worker, phase, lane, kv_head, part)


def _attend(worker: Worker, phase: Phase, lane: int, kv_head: int, part: int) -> None:
    plan, end = worker.plan, worker.position + worker.width
    attention = plan.config.attention(phase.layer)
    each = attention.heads // attention.cached_heads
    heads = slice(kv_head * each, (kv_head + 1) * each)
    layer = _keys_of(attention, phase.layer)
    keys = np.arange(end)
    mine = keys // plan.device.chunk % plan.splits_of(phase.layer) == part
    keys = keys[mine]
    if reads_raw(plan.config, plan.device, phase.layer):
        q, *kept = finish_raw(worker, phase.layer, lane, kv_head)
        new = mine[worker.position :]
        for i, array in enumerate(kept):  # those of its own split
            region = (layer, i, lane, slice(worker.position, end), kv_head)
            worker.write(Buffer.KEY_VALUE, region, (new,), array[new])
    else:
        query = worker.read(Buffer.QUERY, (lane, slice(worker.width)))
        q = query.reshape(worker.width, -1, attention.cached_width)[:, heads]  # [T, a, h]
    k, v = (
        worker.read(Buffer.KEY_VALUE, (layer, i, lane, slice(end), kv_head))[keys]
        for i in (0, attention.cached_lists - 1)  # a latent is its own value
    )
    seen = _visible(keys, worker.position, worker.width, attention)
    partial = _partial_attention(attention, q, k, v, seen)
    where = (part, slice(worker.width), heads)
    worker.write(Buffer.ATTENTION, (lane,), where, partial)


def _visible(
    keys: npt.NDArray[np.int64], first: int, width: int, attention: Attention
) -> npt.NDArray[np.bool_]:
    """Tell which of the keys each of the tokens sees: [T, keys]."""
    query = np.arange(first, first + width)[:, None]
    seen = keys[None] <= query
    if (window := attention.window) is not None:
        oldest = query // window * window if attention.chunked else query - window + 1
        seen &= keys[None] >= oldest
    return seen


def _partial_attention(
    attention: Attention, q: Floats, k: Floats, v: Floats, seen: npt.NDArray[np.bool_]
) -> Floats:
    """Attend to some keys: sum of e * v, then the peak of the scores and the total of e.

    q [T, a, h], k and v [S, h], seen [T, S] -> [T, a, h + 2]. Nothing seen: peak -inf, total 0.
    """
    scores = np.einsum("tah,sh->tas", q, k) * np.float32(attention.scale)
    scores = cap_logits(scores, 1.0, attention.cap)
    scores = np.where(seen[:, None, :], scores, np.float32(-np.inf))
    peak = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    e = np.exp(scores - np.where(np.isfinite(peak), peak, 0))
    total = e.sum(axis=-1, keepdims=True)
    return np.concatenate([np.einsum("tas,sh->tah", e, v), peak, total], -1, dtype=np.float32)


PART = Part(
    operation=Attention,
    kinds={
        PhaseKind.ATTEND: Kind(
            touches=_touches,
            units=_units,
            beside=_keys,
            run=_run,
        )
    },
    build=_build,
    order=_order,
)
