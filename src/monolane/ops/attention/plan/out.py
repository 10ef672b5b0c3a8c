"""OUT: the last product of attention; where nothing else did, it merges the partials first.

Where attention has a gate, what is merged is multiplied by its sigmoids.
"""

from monolane.model import Attention, Role
from monolane.ops._names import Buffer
from monolane.plan.parts import (
    Builder,
    Kind,
    Part,
    Phase,
    PhaseKind,
    Plan,
    Touches,
    Worker,
    own,
    says,
)
from monolane.reference import sigmoid


def _build(builder: Builder, layer: int, place: int) -> tuple[Phase, ...]:
    attention = builder.config.attention(layer)
    read = Buffer.ATTENTION if attention.latent is None else Buffer.HEADS
    gate = (Buffer.QUERY_GATE,) if attention.gate else ()
    reads = tuple(own(buffer, layer) for buffer in (read, *gate))
    writes = (builder.output(place, layer),)
    return (builder.phase(PhaseKind.OUT, layer, Role.O, reads=reads, writes=writes),)


def _order(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    del plan, layer
    return (PhaseKind.OUT,)


def _touches(plan: Plan, layer: int) -> Touches:
    attention = plan.config.attention(layer)
    read = Buffer.HEADS if attention.latent is not None else Buffer.ATTENTION
    gate = (Buffer.QUERY_GATE,) if attention.gate else ()
    return Touches((read, *gate), (says(Attention)(plan, layer),))


def _run(worker: Worker, phase: Phase) -> None:
    (matrix,) = phase.matrices
    attention = worker.plan.config.attention(phase.layer)
    for lane, rows in worker.pieces(matrix):
        if attention.latent is None:
            read = worker.merged(phase.layer, lane)
        else:
            read = worker.read(Buffer.HEADS, (lane, slice(worker.width)))
        if attention.gate:
            read = read * sigmoid(worker.read(Buffer.QUERY_GATE, (lane, slice(worker.width))))
        y = worker.product(phase.layer, matrix, lane, rows, read)
        if attention.out_bias:
            y = y + worker.run.layers[phase.layer][Role.O_BIAS][0, rows]
        worker.store(phase.writes[0].buffer, (phase.writes[0].slot, lane), rows, y)


PART = Part(
    operation=Attention,
    kinds={PhaseKind.OUT: Kind(touches=_touches, roles=lambda _, __: (Role.O,), run=_run)},
    build=_build,
    order=_order,
    share_out=lambda builder, layer: {Role.O: builder.share(Role.O, layer)},
)
