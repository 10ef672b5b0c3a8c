"""QKV, and behind it NORM_QK where a norm goes over all heads: queries, keys and values."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from monolane.model import Attention, ModelConfig, QkNorm, Role
from monolane.ops._names import Buffer
from monolane.plan.parts import (
    Builder,
    DeviceDescription,
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
    cut,
    joined_before,
    own,
    split,
)
from monolane.reference import rms_norm

_BIASES = {Role.Q: Role.Q_BIAS, Role.K: Role.K_BIAS, Role.V: Role.V_BIAS}


def _attention_of(config: ModelConfig, layer: int) -> Attention | None:
    """Return a layer's attention, unless it is a latent one."""
    attention = config.attention(layer)
    return attention if attention.latent is None else None


def reads_raw(config: ModelConfig, device: DeviceDescription, layer: int) -> bool:
    """Whether who attends norms and turns queries and keys himself, and keeps the keys.

    Where weights are packed in tiles: workers then may have any rows, a part of a head even, and
    nobody waits for its other parts but those who read all of it anyway.
    """
    if not device.tile_rows or any(x.keys_of is not None for x in config.attentions.values()):
        return False
    attention = config.attention(layer)
    # A norm of all heads would need those of other lanes, of which a worker may know nothing.
    plain = attention.latent is None and (
        attention.qk_norm is not QkNorm.ALL or config.num_lanes == 1
    )
    return plain and not (attention.gate or attention.value_norm or attention.key_is_value)


def _roles(attention: Attention) -> tuple[Role, ...]:
    if attention.keys_of is not None:
        return (Role.Q,)
    return (Role.Q, Role.K) if attention.key_is_value else (Role.Q, Role.K, Role.V)


def _build(builder: Builder, layer: int, place: int) -> tuple[Phase, ...]:
    attention = _attention_of(builder.config, layer)
    if attention is None:
        return ()
    query, keys = own(Buffer.QUERY, layer), own(Buffer.KEY_VALUE, layer, layer)
    before = builder.updates_before(layer, place)
    if reads_raw(builder.config, builder.device, layer):
        raw, roles = (own(Buffer.UNNORMED, layer),), _roles(attention)
        return (builder.phase(PhaseKind.QKV, layer, *roles, updates=before, writes=raw),)
    if attention.qk_norm is not QkNorm.ALL:
        gate = (own(Buffer.QUERY_GATE, layer),) if attention.gate else ()
        writes = (query, *gate, *((keys,) if attention.keys_of is None else ()))
        roles = _roles(attention)
        return (builder.phase(PhaseKind.QKV, layer, *roles, updates=before, writes=writes),)
    unnormed = own(Buffer.UNNORMED, layer)
    writes = (unnormed, keys)
    # Heads are shared out, of Q and then of K; every worker sums the squares of all lanes.
    heads = (attention.heads + attention.kv_heads) // builder.groups.count
    return (
        builder.phase(PhaseKind.QKV, layer, *_roles(attention), updates=before, writes=writes),
        builder.phase(
            PhaseKind.NORM_QK,
            layer,
            units=Share(Scope.GROUP, split(heads, builder.groups.workers_each)),
            reads=(replace(unnormed, lanes=Scope.ALL),),
            writes=(query, keys),
        ),
    )


def _order(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    attention = _attention_of(plan.config, layer)
    if attention is None:
        return ()
    raw = reads_raw(plan.config, plan.device, layer)
    late = attention.qk_norm is QkNorm.ALL and not raw
    return (PhaseKind.QKV, PhaseKind.NORM_QK) if late else (PhaseKind.QKV,)


def _share_out(builder: Builder, layer: int) -> Mapping[Role, Share]:
    """Share out each matrix; what is left over goes to other workers from one to the next."""
    attention = _attention_of(builder.config, layer)
    if attention is None:
        return {}
    if reads_raw(builder.config, builder.device, layer):
        return builder.share_in_turn(layer, dict.fromkeys(_roles(attention), 1))
    together, group = _rows_together(builder.config, attention), builder.keys.group
    # Of Q, where a gate follows each head, both stay together.
    queries = 2 * attention.head_dim if attention.gate else together
    # Who has a group of keys or values makes its codes.
    values = attention.head_dim if attention.value_norm else 1
    least = {Role.Q: queries, Role.K: max(together, group), Role.V: max(values, group)}
    return builder.share_in_turn(layer, {role: least[role] for role in _roles(attention)})


def _rows_together(config: ModelConfig, attention: Attention) -> int:
    """Return how many rows of Q and K one worker must have from their product to their end."""
    if attention.qk_norm is QkNorm.ALL:  # NORM_QK shares them out anew
        return 1
    whole = attention.qk_norm is QkNorm.HEAD or config.rotary.style == "half"
    return attention.head_dim if whole else 2


def _touches(plan: Plan, layer: int) -> Touches:
    attention = plan.config.attention(layer)
    if reads_raw(plan.config, plan.device, layer):
        return Touches(writes=(Buffer.UNNORMED,))
    if attention.qk_norm is QkNorm.ALL:  # values alone; keys follow when normed
        return Touches(writes=(Buffer.UNNORMED, Buffer.KEY_VALUE))
    gate = (Buffer.QUERY_GATE,) if attention.gate else ()
    keys = (Buffer.KEY_VALUE,) if attention.keys_of is None else ()
    return Touches(writes=(Buffer.QUERY, *gate, *keys))


def _roles_of(config: ModelConfig, layer: int) -> tuple[Role, ...]:
    attention = config.attention(layer)
    keys = () if attention.keys_of is not None else (Role.K,)
    values = () if attention.key_is_value or not keys else (Role.V,)
    return (Role.Q, *keys, *values)


def _check_cuts(plan: Plan, phase: Phase) -> Iterator[str]:
    attention = plan.config.attention(phase.layer)
    if attention.qk_norm is QkNorm.ALL or reads_raw(plan.config, plan.device, phase.layer):
        return
    pair = 2 if plan.config.rotary.style == "interleaved" else attention.head_dim
    heads = attention.head_dim if attention.qk_norm is QkNorm.HEAD else 1
    for matrix in phase.matrices[:2]:
        bounds = matrix.share.bounds
        gated = attention.gate and matrix.role is Role.Q
        if gated and (wrong := [bound for bound in bounds if bound % (2 * attention.head_dim)]):
            yield f"{matrix.role}: a head and its gate are cut at row {wrong[0]}"
        if wrong := [bound for bound in bounds if bound % pair]:
            yield f"{matrix.role}: a rotary pair is cut at row {wrong[0]}"
        if wrong := [bound for bound in bounds if bound % heads]:
            yield f"{matrix.role}: a head that is normed is cut at row {wrong[0]}"
    for matrix in phase.matrices[2:] if attention.value_norm else ():
        if wrong := [bound for bound in matrix.share.bounds if bound % attention.head_dim]:
            yield f"{matrix.role}: a head that is normed is cut at row {wrong[0]}"


def _heads(plan: Plan, layer: int) -> int:
    attention = plan.config.attention(layer)
    return (attention.heads + attention.kv_heads) // plan.groups.count


def _qkv(worker: Worker, phase: Phase) -> None:
    attention = worker.plan.config.attention(phase.layer)
    read = worker.read_stream(phase)
    raw, before = reads_raw(worker.plan.config, worker.plan.device, phase.layer), 0
    for matrix in phase.matrices:
        for lane, rows in worker.pieces(matrix):
            y = worker.product(phase.layer, matrix, lane, rows, worker.own(read, lane))
            if attention.bias:
                y = y + worker.run.layers[phase.layer][_BIASES[matrix.role]][lane, rows]
            if raw:
                where = slice(before + rows.start, before + rows.stop)
                worker.store(Buffer.UNNORMED, (lane,), where, y)
            elif matrix.role is Role.Q and attention.gate:
                _gated_queries(worker, phase, lane, rows, y)
            elif matrix.role is Role.V:
                _store_values(worker, phase, lane, rows, matrix.rows, y)
            elif attention.qk_norm is QkNorm.ALL:
                where = slice(before + rows.start, before + rows.stop)
                worker.store(Buffer.UNNORMED, (lane,), where, y)
            else:
                if matrix.role is Role.K and attention.key_is_value:
                    _store_values(worker, phase, lane, rows, matrix.rows, y)
                y = _finished(worker, phase.layer, matrix.role, rows, matrix.rows, y)
                _store(worker, phase, matrix.role, lane, rows, y)
        before += matrix.rows


def finish_raw(
    worker: Worker, layer: int, lane: int, kv_head: int
) -> tuple[Floats, Floats, Floats]:
    """Return queries [T, a, h], keys [T, h] and values [T, h] of a KV head, of the raw products."""
    attention = worker.plan.config.attention(layer)
    lanes, dim = worker.plan.config.num_lanes, attention.head_dim
    heads, kv_heads = attention.heads // lanes, attention.kv_heads // lanes
    raw = worker.read(Buffer.UNNORMED, (lane, slice(worker.width)))
    q, k, v = np.split(raw, [heads * dim, (heads + kv_heads) * dim], axis=1)
    if attention.qk_norm is QkNorm.ALL:
        own = worker.run.layers[layer]
        q = rms_norm(q[None], own[Role.Q_NORM], worker.plan.config.norm_eps)[0]
        k = rms_norm(k[None], own[Role.K_NORM], worker.plan.config.norm_eps)[0]
    q = tempered(worker, layer, _finished(worker, layer, Role.Q, slice(None), heads * dim, q))
    k = _finished(worker, layer, Role.K, slice(None), kv_heads * dim, k)
    own_heads = slice(kv_head * (heads // kv_heads), (kv_head + 1) * (heads // kv_heads))
    q, k, v = (x.reshape(worker.width, -1, dim) for x in (q, k, v))
    return q[:, own_heads], k[:, kv_head], v[:, kv_head]


def _store_values(
    worker: Worker, phase: Phase, lane: int, rows: slice, count: int, y: Floats
) -> None:
    """Store some rows of a lane's values, normed where they are; of whole heads then."""
    config = worker.plan.config
    attention = config.attention(phase.layer)
    if attention.value_norm:
        ones = np.ones((1, attention.head_dim), np.float32)
        normed = rms_norm(_whole(worker, phase.layer, rows, count, y), ones, config.norm_eps)
        y = normed.reshape(worker.width, count)[:, rows]
    _store(worker, phase, Role.V, lane, rows, y)


def _gated_queries(worker: Worker, phase: Phase, lane: int, rows: slice, y: Floats) -> None:
    """Store queries and gates, which Q makes by turns of a head each."""
    attention = worker.plan.config.attention(phase.layer)
    both = y.reshape(worker.width, -1, 2, attention.head_dim)
    own_rows = slice(rows.start // 2, rows.stop // 2)
    queries, gates = (both[:, :, i].reshape(worker.width, -1) for i in (0, 1))
    count = attention.heads // worker.plan.config.num_lanes * attention.head_dim
    turned = _finished(worker, phase.layer, Role.Q, own_rows, count, queries)
    _store(worker, phase, Role.Q, lane, own_rows, turned)
    worker.store(Buffer.QUERY_GATE, (lane,), own_rows, gates)


def _norm_qk(worker: Worker, phase: Phase) -> None:
    assert phase.units is not None
    config = worker.plan.config
    attention = config.attention(phase.layer)
    lanes, dim = config.num_lanes, attention.head_dim
    both = [worker.read(Buffer.UNNORMED, (lane, slice(worker.width))) for lane in range(lanes)]
    heads, kv_heads = attention.heads // lanes, attention.kv_heads // lanes
    for role, scale, before, count in (
        (Role.Q, Role.Q_NORM, 0, heads),
        (Role.K, Role.K_NORM, heads, kv_heads),
    ):
        columns = slice(before * dim, (before + count) * dim)
        x = np.concatenate([lane[:, columns] for lane in both], axis=-1)
        normed = rms_norm(x[None], worker.run.layers[phase.layer][scale], config.norm_eps)[0]
        for i, lane in enumerate(worker.lanes):
            first = i * (heads + kv_heads) + before
            own_rows = [min(max(u - first, 0), count) * dim for u in phase.units.of(worker.index)]
            rows = slice(*own_rows)
            if own_rows[0] < own_rows[1]:
                y = normed[:, lane * count * dim :][:, rows]
                turned = _rotate(worker, phase.layer, rows, count * dim, y)
                _store(worker, phase, role, lane, rows, turned)


def _finished(worker: Worker, layer: int, role: Role, rows: slice, count: int, y: Floats) -> Floats:
    """Norm and turn some rows of a lane's heads; a head of which rows are missing is wrong."""
    config = worker.plan.config
    attention = config.attention(layer)
    if attention.norm_turned:
        y = _rotate(worker, layer, rows, count, y)
    if attention.qk_norm is QkNorm.HEAD:
        own = worker.run.layers[layer]
        ones = np.ones((1, attention.head_dim), np.float32)
        scale = own.get(Role.Q_NORM if role is Role.Q else Role.K_NORM, ones)
        normed = rms_norm(_whole(worker, layer, rows, count, y), scale, config.norm_eps)
        y = normed.reshape(worker.width, count)[:, rows]
    return y if attention.norm_turned else _rotate(worker, layer, rows, count, y)


def _rotate(worker: Worker, layer: int, rows: slice, count: int, y: Floats) -> Floats:
    """Turn some rows of the heads; a pair of which one row is missing comes out wrong."""
    turned = worker.turned(layer, _whole(worker, layer, rows, count, y)[0])
    part: Floats = turned.reshape(worker.width, count)[:, rows]
    return part


def tempered(worker: Worker, layer: int, y: Floats) -> Floats:
    """Multiply queries by what grows with their position."""
    temperature = worker.plan.config.attention(layer).temperature
    if temperature is None:
        return y
    positions_T = np.arange(worker.position, worker.position + worker.width)
    return y * temperature.factors(positions_T)[:, None]


def _whole(worker: Worker, layer: int, rows: slice, count: int, y: Floats) -> Floats:
    """Put rows among zeros in their places of a lane's heads: [1, T, heads, h]."""
    whole = np.zeros((worker.width, count), np.float32)
    whole[:, rows] = y
    return whole.reshape(1, worker.width, -1, worker.plan.config.attention(layer).head_dim)


def _store(worker: Worker, phase: Phase, role: Role, lane: int, rows: slice, y: Floats) -> None:
    if role is Role.Q:
        worker.store(Buffer.QUERY, (lane,), rows, tempered(worker, phase.layer, y))
        return
    new = slice(worker.position, worker.position + worker.width)
    region = (phase.layer, 0 if role is Role.K else 1, lane, new)
    h = worker.plan.config.attention(phase.layer).head_dim
    for head, columns in cut(rows.start, rows.stop, h):
        begin = head * h + columns.start - rows.start
        part = y[:, begin : begin + columns.stop - columns.start]
        where = (slice(None), head, columns)
        worker.write(Buffer.KEY_VALUE, region, where, part)


PART = Part(
    operation=Attention,
    kinds={
        PhaseKind.QKV: Kind(
            touches=_touches,
            roles=_roles_of,
            updates=joined_before(Attention),
            faults=_check_cuts,
            run=_qkv,
        ),
        PhaseKind.NORM_QK: Kind(
            touches=lambda _, __: Touches(
                (Buffer.UNNORMED,), (Buffer.QUERY, Buffer.KEY_VALUE), wide=(Buffer.UNNORMED,)
            ),
            units=_heads,
            run=_norm_qk,
        ),
    },
    build=_build,
    order=_order,
    share_out=_share_out,
)
