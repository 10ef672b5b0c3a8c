"""SPARSE_GATE_UP and SPARSE_DOWN: an MLP whose gate lets few numbers through, of one lane.

Which ones those are all of a token's products with the gate decide. So the first phase leaves both
products, and in the second each worker makes of them what it multiplies, without another wait.
"""

from collections.abc import Mapping

import numpy as np

from monolane.model import Role
from monolane.ops._names import Buffer
from monolane.ops.sparse_mlp.reference import hidden_of
from monolane.ops.sparse_mlp.spec import SparseMlp
from monolane.plan.parts import (
    Builder,
    Kind,
    Part,
    Phase,
    PhaseKind,
    Plan,
    Share,
    Touches,
    Worker,
    joined_before,
    own,
    says,
)

_said = says(SparseMlp)


def _build(builder: Builder, layer: int, place: int) -> tuple[Phase, ...]:
    hidden, output = own(Buffer.HIDDEN, layer), builder.output(place, layer)
    return (
        builder.phase(
            PhaseKind.SPARSE_GATE_UP,
            layer,
            *(Role.GATE, Role.UP),
            updates=builder.updates_before(layer, place),
            writes=(hidden,),
        ),
        builder.phase(PhaseKind.SPARSE_DOWN, layer, Role.DOWN, reads=(hidden,), writes=(output,)),
    )


def _order(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    del plan, layer
    return (PhaseKind.SPARSE_GATE_UP, PhaseKind.SPARSE_DOWN)


def _share_out(builder: Builder, layer: int) -> Mapping[Role, Share]:
    ups = builder.share_in_turn(layer, {Role.GATE: 1, Role.UP: 1})
    return {**ups, Role.DOWN: builder.share(Role.DOWN, layer)}


def _gate_up(worker: Worker, phase: Phase) -> None:
    x = worker.read_stream(phase)[0]
    for i, matrix in enumerate(phase.matrices):
        for lane, rows in worker.pieces(matrix):
            y = worker.product(phase.layer, matrix, lane, rows, x)
            first = i * matrix.rows
            columns = slice(first + rows.start, first + rows.stop)
            worker.store(Buffer.HIDDEN, (lane,), columns, y)


def _down(worker: Worker, phase: Phase) -> None:
    (matrix,), (write,) = phase.matrices, phase.writes
    operation = worker.plan.config.operation(phase.layer, SparseMlp)
    products = worker.read(Buffer.HIDDEN, (0, slice(worker.width)))
    hidden = hidden_of(operation, *np.split(products, 2, axis=-1))
    for lane, rows in worker.pieces(matrix):
        y = worker.product(phase.layer, matrix, lane, rows, hidden)
        worker.store(write.buffer, (write.slot, lane), rows, y)


_PART = Part(
    operation=SparseMlp,
    kinds={
        PhaseKind.SPARSE_GATE_UP: Kind(
            touches=lambda _, __: Touches(writes=(Buffer.HIDDEN,)),
            roles=lambda _, __: (Role.GATE, Role.UP),
            updates=joined_before(SparseMlp),
            run=_gate_up,
        ),
        PhaseKind.SPARSE_DOWN: Kind(
            touches=lambda plan, layer: Touches((Buffer.HIDDEN,), (_said(plan, layer),)),
            roles=lambda _, __: (Role.DOWN,),
            run=_down,
        ),
    },
    build=_build,
    order=_order,
    share_out=_share_out,
)
PARTS = (_PART,)
