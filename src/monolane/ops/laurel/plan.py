"""LAUREL_LEFT, LAUREL_RIGHT and LAUREL_NORM: a learned residual. Such a model has one lane.

The norm goes over all rows of the second product, so it is a phase of its own.
"""

from collections.abc import Mapping

from monolane.model import Role
from monolane.ops._names import Buffer
from monolane.ops.laurel.spec import Laurel
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
    choose_align,
    joined_before,
    own,
    says,
    split,
)

_said = says(Laurel)


def _build(builder: Builder, layer: int, place: int) -> tuple[Phase, ...]:
    hidden, mixed = own(Buffer.HIDDEN, layer), own(Buffer.MIXED, layer)
    columns, workers = builder.config.hidden_size, builder.groups.workers_each
    bounds = split(columns, workers, choose_align(columns, workers))
    return (
        builder.phase(
            PhaseKind.LAUREL_LEFT,
            layer,
            Role.LAUREL_LEFT,
            updates=builder.updates_before(layer, place),
            writes=(hidden,),
        ),
        builder.phase(
            PhaseKind.LAUREL_RIGHT, layer, Role.LAUREL_RIGHT, reads=(hidden,), writes=(mixed,)
        ),
        builder.phase(
            PhaseKind.LAUREL_NORM,
            layer,
            units=Share(Scope.GROUP, bounds),
            reads=(mixed,),
            writes=(builder.output(place, layer),),
        ),
    )


def _order(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    del plan, layer
    return (PhaseKind.LAUREL_LEFT, PhaseKind.LAUREL_RIGHT, PhaseKind.LAUREL_NORM)


def _share_out(builder: Builder, layer: int) -> Mapping[Role, Share]:
    return {role: builder.share(role, layer) for role in (Role.LAUREL_LEFT, Role.LAUREL_RIGHT)}


def _left(worker: Worker, phase: Phase) -> None:
    (matrix,), x = phase.matrices, worker.read_stream(phase)[0]
    for lane, rows in worker.pieces(matrix):
        y = worker.product(phase.layer, matrix, lane, rows, x)
        worker.store(Buffer.HIDDEN, (lane,), rows, y)


def _right(worker: Worker, phase: Phase) -> None:
    (matrix,) = phase.matrices
    x = worker.read(Buffer.HIDDEN, (0, slice(worker.width)))
    for lane, rows in worker.pieces(matrix):
        y = worker.product(phase.layer, matrix, lane, rows, x)
        worker.store(Buffer.MIXED, (lane,), rows, y)


def _norm(worker: Worker, phase: Phase) -> None:
    assert phase.units is not None
    made = worker.read(Buffer.MIXED, (slice(0, 1), slice(worker.width)))
    both = worker.read_stream(phase) + worker.normed(made, phase.layer, Role.LAUREL_NORM)
    (write,), columns = phase.writes, slice(*phase.units.of(worker.index))
    worker.store(write.buffer, (write.slot, 0), columns, both[0][:, columns])


def _columns(plan: Plan, _: int) -> int:
    return plan.config.hidden_size


_PART = Part(
    operation=Laurel,
    kinds={
        PhaseKind.LAUREL_LEFT: Kind(
            touches=lambda _, __: Touches(writes=(Buffer.HIDDEN,)),
            roles=lambda _, __: (Role.LAUREL_LEFT,),
            updates=joined_before(Laurel),
            run=_left,
        ),
        PhaseKind.LAUREL_RIGHT: Kind(
            touches=lambda _, __: Touches((Buffer.HIDDEN,), (Buffer.MIXED,)),
            roles=lambda _, __: (Role.LAUREL_RIGHT,),
            run=_right,
        ),
        PhaseKind.LAUREL_NORM: Kind(
            touches=lambda plan, layer: Touches((Buffer.MIXED,), (_said(plan, layer),)),
            units=_columns,
            run=_norm,
        ),
    },
    build=_build,
    order=_order,
    share_out=_share_out,
)
PARTS = (_PART,)
