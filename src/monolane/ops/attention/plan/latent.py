"""LATENT, EXPAND and VALUES: attention whose keys and values are made of one cached latent a token.

It is in the absorbed form: the first two, in QKV's place, make queries that meet the latents
themselves, and VALUES makes the heads' values of what ATTEND summed up. Latents are shared out by
rows, queries by heads, values by rows. Such a model has one lane.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from monolane.model import Attention, Latent, ModelConfig, Role
from monolane.ops._names import Buffer
from monolane.ops.attention.plan.qkv import tempered
from monolane.plan.parts import (
    Builder,
    Kind,
    Part,
    Phase,
    PhaseKind,
    Plan,
    Scope,
    Share,
    Touches,
    Worker,
    joined_before,
    own,
    split,
)
from monolane.reference import rms_norm


def _build(builder: Builder, layer: int, place: int) -> tuple[Phase, ...]:
    latent = _latent_of(builder.config, layer)
    if latent is None:
        return ()
    latents = own(Buffer.LATENTS, layer)
    return (
        builder.phase(
            PhaseKind.LATENT,
            layer,
            *_latent_roles(latent),
            updates=builder.updates_before(layer, place),
            writes=(latents,),
        ),
        builder.phase(
            PhaseKind.EXPAND,
            layer,
            *(Role.Q, Role.K_UP),
            reads=(latents,),
            writes=(own(Buffer.QUERY, layer), own(Buffer.KEY_VALUE, layer, layer)),
        ),
    )


def _build_values(builder: Builder, layer: int, place: int) -> tuple[Phase, ...]:
    if _latent_of(builder.config, layer) is None:
        return ()
    reads, writes = (own(Buffer.ATTENTION, layer),), (own(Buffer.HEADS, layer),)
    return (builder.phase(PhaseKind.VALUES, layer, Role.V_UP, reads=reads, writes=writes),)


def _order(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    return () if _latent_of(plan.config, layer) is None else (PhaseKind.LATENT, PhaseKind.EXPAND)


def _order_values(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    return () if _latent_of(plan.config, layer) is None else (PhaseKind.VALUES,)


def _latent_of(config: ModelConfig, layer: int) -> Latent | None:
    return config.attention(layer).latent


def _share_out(builder: Builder, layer: int) -> Mapping[Role, Share]:
    latent = _latent_of(builder.config, layer)
    if latent is None:
        return {}
    # By the same heads: who makes a query has all of it for its second product.
    heads = split(builder.config.attention(layer).heads, builder.groups.workers_each)
    by_heads = {
        role: Share(Scope.GROUP, tuple(rows * head for head in heads))
        for role, rows in ((Role.Q, latent.head), (Role.K_UP, latent.rank))
    }
    return {**by_heads, **builder.share_in_turn(layer, dict.fromkeys(_latent_roles(latent), 1))}


def _share_values(builder: Builder, layer: int) -> Mapping[Role, Share]:
    there = _latent_of(builder.config, layer) is not None
    return {Role.V_UP: builder.share(Role.V_UP, layer)} if there else {}


def _latent_roles(latent: Latent) -> tuple[Role, ...]:
    """Return the matrices that make latents: the queries' own too, where they have one."""
    return (Role.KV_DOWN,) if latent.query_rank is None else (Role.Q_DOWN, Role.KV_DOWN)


def _expected_latents(config: ModelConfig, layer: int) -> tuple[Role, ...]:
    latent = _latent_of(config, layer)
    none = latent is None or latent.query_rank is None
    return (Role.KV_DOWN,) if none else (Role.Q_DOWN, Role.KV_DOWN)


def _check_heads(plan: Plan, phase: Phase) -> Iterator[str]:
    latent = _latent_of(plan.config, phase.layer)
    if latent is None:
        return
    sizes = (latent.head, latent.rank)
    heads = [
        [divmod(bound, size) for bound in matrix.share.bounds]
        for matrix, size in zip(phase.matrices, sizes, strict=True)
    ]
    if heads[0] != heads[1] or any(rest for each in heads for _, rest in each):
        yield "expected queries and their second product to be shared out by the same heads"


def _latent(worker: Worker, phase: Phase) -> None:
    worker.notes["normed"] = worker.read_stream(phase)[0]
    before = 0
    for matrix in phase.matrices:
        for lane, rows in worker.pieces(matrix):
            y = worker.product(phase.layer, matrix, lane, rows, worker.notes["normed"])
            where = slice(before + rows.start, before + rows.stop)
            worker.store(Buffer.LATENTS, (0,), where, y)
        before += matrix.rows


def _expand(worker: Worker, phase: Phase) -> None:
    latent = _latent_of(worker.plan.config, phase.layer)
    weights = worker.run.layers[phase.layer]
    assert latent is not None
    both = worker.read(Buffer.LATENTS, (0, slice(worker.width)))
    queries = latent.query_rank or 0
    if worker.index == 0:
        l_TR, t_Tr = np.split(both[:, queries:], [latent.rank], axis=-1)
        l_TR = rms_norm(l_TR[None], weights[Role.K_NORM], latent.norm_eps)[0]
        new = slice(worker.position, worker.position + worker.width)
        line = np.concatenate([l_TR, worker.turned(phase.layer, t_Tr[:, None])[:, 0]], axis=-1)
        region, whole = (phase.layer, 0, 0, new), (slice(None), 0)
        worker.write(Buffer.KEY_VALUE, region, whole, line)
    made_of = worker.notes["normed"]
    if queries:
        made_of = rms_norm(both[None, :, :queries], weights[Role.Q_NORM], latent.norm_eps)[0]
    query, up = phase.matrices
    begin, end = query.share.of(worker.index)
    if begin == end:
        return
    y = worker.product(phase.layer, query, 0, slice(begin, end), made_of)
    q_THh = tempered(worker, phase.layer, y).reshape(worker.width, -1, latent.head)
    turned = worker.turned(phase.layer, q_THh[..., latent.plain :])
    for i, (head, rows) in enumerate(worker.pieces_of_heads(up)):
        plain = q_THh[:, i, : latent.plain]
        met = worker.product(phase.layer, up, head, rows, plain)
        where = slice(head * latent.cached, (head + 1) * latent.cached)
        worker.store(Buffer.QUERY, (0,), where, np.concatenate([met, turned[:, i]], axis=-1))


def _values(worker: Worker, phase: Phase) -> None:
    latent, (matrix,) = _latent_of(worker.plan.config, phase.layer), phase.matrices
    assert latent is not None
    merged = worker.merged(phase.layer, 0).reshape(worker.width, -1, latent.cached)
    for head, rows in worker.pieces_of_heads(matrix):
        y = worker.product(phase.layer, matrix, head, rows, merged[:, head, : latent.rank])
        where = slice(head * latent.value + rows.start, head * latent.value + rows.stop)
        worker.store(Buffer.HEADS, (0,), where, y)


# What is before ATTEND.
PART = Part(
    operation=Attention,
    kinds={
        PhaseKind.LATENT: Kind(
            touches=lambda _, __: Touches(writes=(Buffer.LATENTS,)),
            roles=_expected_latents,
            updates=joined_before(Attention),
            run=_latent,
        ),
        PhaseKind.EXPAND: Kind(
            touches=lambda _, __: Touches((Buffer.LATENTS,), (Buffer.QUERY, Buffer.KEY_VALUE)),
            roles=lambda _, __: (Role.Q, Role.K_UP),
            faults=_check_heads,
            run=_expand,
        ),
    },
    build=_build,
    order=_order,
    share_out=_share_out,
)
# What is behind it.
VALUES = Part(
    operation=Attention,
    kinds={
        PhaseKind.VALUES: Kind(
            touches=lambda _, __: Touches((Buffer.ATTENTION,), (Buffer.HEADS,)),
            roles=lambda _, __: (Role.V_UP,),
            run=_values,
        )
    },
    build=_build_values,
    order=_order_values,
    share_out=_share_values,
)
