"""GATE_UP and DOWN: a dense MLP."""

from collections.abc import Mapping

from monolane.model import Mlp, ModelConfig, Role
from monolane.ops._names import Buffer
from monolane.plan.parts import (
    Builder,
    Kind,
    Part,
    Phase,
    PhaseKind,
    Share,
    Touches,
    Worker,
    check_pairs,
    joined_before,
    last_product,
    own,
)
from monolane.reference import GATES


def _build(builder: Builder, layer: int, place: int) -> tuple[Phase, ...]:
    hidden, output = own(Buffer.HIDDEN, layer), builder.output(place, layer)
    return (
        builder.phase(
            PhaseKind.GATE_UP,
            layer,
            *(Role.GATE, Role.UP),
            updates=builder.updates_before(layer, place),
            writes=(hidden,),
        ),
        builder.phase(PhaseKind.DOWN, layer, Role.DOWN, reads=(hidden,), writes=(output,)),
    )


def _order(config: ModelConfig, layer: int) -> tuple[PhaseKind, ...]:
    del config, layer
    return (PhaseKind.GATE_UP, PhaseKind.DOWN)


def _share_out(builder: Builder, layer: int) -> Mapping[Role, Share]:
    gate = builder.share(Role.GATE, layer)  # activation(gate) * up needs both of a row
    return {Role.GATE: gate, Role.UP: gate, Role.DOWN: builder.share(Role.DOWN, layer)}


def _gate_up(worker: Worker, phase: Phase) -> None:
    read = worker.read_stream(phase)
    gates = GATES[worker.plan.config.activation]
    gate, up = phase.matrices
    for lane, rows in worker.pieces(gate):
        x = worker.own(read, lane)
        left = worker.product(phase.layer, gate, lane, rows, x)
        right = worker.product(phase.layer, up, lane, rows, x)
        worker.store(Buffer.HIDDEN, (lane,), rows, gates(left, right))


_PART = Part(
    operation=Mlp,
    kinds={
        PhaseKind.GATE_UP: Kind(
            touches=lambda _, __: Touches(writes=(Buffer.HIDDEN,)),
            roles=lambda _, __: (Role.GATE, Role.UP),
            updates=joined_before(Mlp),
            faults=check_pairs,
            run=_gate_up,
        ),
        PhaseKind.DOWN: last_product(Mlp, Role.DOWN, Buffer.HIDDEN),
    },
    build=_build,
    order=_order,
    share_out=_share_out,
)
PARTS = (_PART,)
