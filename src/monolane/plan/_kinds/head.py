"""HEAD: the logits; and before it GATHER, where one head reads the streams of all lanes."""

import numpy as np

from monolane.model import Head, Role
from monolane.ops import Buffer
from monolane.plan._builder import Builder, own, shared
from monolane.plan._interpreter_memory import Floats
from monolane.plan._interpreter_worker import Worker, cut
from monolane.plan._kind import Joining, Kind, Part, Touches, joined
from monolane.plan._phase import Matrix, Phase, PhaseKind
from monolane.plan._plan import Plan
from monolane.plan._split import Scope, Share, choose_align, split
from monolane.reference import cap_logits, norm_stream


def _build(builder: Builder, layer: int, _: int) -> tuple[Phase, ...]:
    updates = builder.updates_before(builder.config.num_layers, 0)
    if not builder.shared_head:
        writes = (own(Buffer.LOGITS, layer),)
        return (builder.phase(PhaseKind.HEAD, layer, Role.HEAD, updates=updates, writes=writes),)
    elements = builder.groups.lanes_each * builder.config.hidden_size
    workers = builder.groups.workers_each
    bounds = split(elements, workers, choose_align(elements, workers))
    return (
        builder.phase(
            PhaseKind.GATHER,
            layer,
            units=Share(Scope.GROUP, bounds),
            updates=updates,
            writes=(own(Buffer.STREAM, layer),),
        ),
        builder.phase(
            PhaseKind.HEAD,
            layer,
            Role.HEAD,
            reads=(shared(Buffer.STREAM),),
            writes=(shared(Buffer.LOGITS),),
        ),
    )


def _order(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    del layer
    joined = plan.config.head is not Head.VOCAB_PARALLEL and plan.config.num_lanes > 1
    return (PhaseKind.GATHER, PhaseKind.HEAD) if joined else (PhaseKind.HEAD,)


def _last(plan: Plan) -> tuple[Joining, ...]:
    *_, modules = plan.config.modules
    return joined(plan, len(plan.config.layers) - 1, len(modules))


def _elements(plan: Plan, _: int) -> int:
    return plan.groups.lanes_each * plan.config.hidden_size


def _gather(worker: Worker, phase: Phase) -> None:
    assert phase.units is not None
    streams = worker.x
    if worker.plan.config.head is not Head.SUM:
        streams = worker.norm(None, Role.FINAL_NORM)
    for lane, part in cut(*phase.units.of(worker.index), streams.shape[-1]):
        worker.store(Buffer.STREAM, (worker.lanes[lane],), part, streams[lane][:, part])


def _touches(plan: Plan, _: int) -> Touches:
    reads = (Buffer.STREAM,) if plan.shared_head else ()
    writes = (Buffer.LOGITS,)
    return Touches(reads, writes, wide=(*reads, *writes) if plan.shared_head else ())


def _head(worker: Worker, phase: Phase) -> None:
    (matrix,) = phase.matrices
    if not worker.plan.shared_head:
        normed = worker.norm(None, Role.FINAL_NORM)
        for lane, rows in worker.pieces(matrix):
            y = _logits(worker, matrix, lane, rows, worker.own(normed, lane))
            region = slice(lane * matrix.rows, (lane + 1) * matrix.rows)
            worker.store(Buffer.LOGITS, (slice(None), region), rows, y)
        return
    joined = _joined(worker)
    for _, rows in cut(*matrix.share.of(worker.index), matrix.rows):
        y = _logits(worker, matrix, 0, rows, joined)
        worker.store(Buffer.LOGITS, (slice(None), slice(0, matrix.rows)), rows, y)


def _logits(worker: Worker, matrix: Matrix, lane: int, rows: slice, x: Floats) -> Floats:
    config = worker.plan.config
    y = worker.product(None, matrix, lane, rows, x)
    return cap_logits(y, config.logit_scale, config.logit_cap)


def _joined(worker: Worker) -> Floats:
    """Bring all lanes' streams together for the head that they share: [T, D or L*D]."""
    config = worker.plan.config
    streams = worker.read(Buffer.STREAM, (slice(None), slice(worker.width)))
    if config.head is Head.SUM:
        scale = worker.run.outer[Role.FINAL_NORM]
        summed = streams.sum(axis=0, keepdims=True)
        normed: Floats = norm_stream(summed, scale, config.norm_eps, config.norm_centred)[0]
        return normed
    if config.head is Head.MEAN:
        mean: Floats = streams.mean(axis=0)
        return mean
    return np.concatenate(list(streams), axis=-1)


PART = Part(
    kinds={
        PhaseKind.GATHER: Kind(
            touches=lambda _, __: Touches(writes=(Buffer.STREAM,)),
            units=_elements,
            updates=lambda plan, _: _last(plan),
            run=_gather,
        ),
        PhaseKind.HEAD: Kind(
            touches=_touches,
            roles=lambda _, __: (Role.HEAD,),
            updates=lambda plan, _: () if plan.shared_head else _last(plan),
            run=_head,
        ),
    },
    build=_build,
    order=_order,
    share_out=lambda builder, _: {Role.HEAD: builder.share(Role.HEAD)},
)
