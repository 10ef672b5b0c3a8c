"""GATE_UP and DOWN: a dense MLP."""

from collections.abc import Iterator, Mapping

from monolane.model import Mlp, ModelConfig, Role
from monolane.ops._names import Buffer
from monolane.ops.mlp.reference import hidden_of
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
    check_pairs,
    joined_before,
    last_product,
    own,
)


def _ups(config: ModelConfig, layer: int) -> tuple[Role, ...]:
    return (Role.GATE, Role.UP) if config.operation(layer, Mlp).gated else (Role.UP,)


def _build(builder: Builder, layer: int, place: int) -> tuple[Phase, ...]:
    hidden, output = own(Buffer.HIDDEN, layer), builder.output(place, layer)
    return (
        builder.phase(
            PhaseKind.GATE_UP,
            layer,
            *_ups(builder.config, layer),
            updates=builder.updates_before(layer, place),
            writes=(hidden,),
        ),
        builder.phase(PhaseKind.DOWN, layer, Role.DOWN, reads=(hidden,), writes=(output,)),
    )


def _order(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    del plan, layer
    return (PhaseKind.GATE_UP, PhaseKind.DOWN)


def _share_out(builder: Builder, layer: int) -> Mapping[Role, Share]:
    roles = _ups(builder.config, layer)
    # activation(gate) * up needs both of a row
    ups = dict.fromkeys(roles, builder.share(Role.UP, layer, beside=len(roles)))
    return {**ups, Role.DOWN: builder.share(Role.DOWN, layer)}


def _check_ups(plan: Plan, phase: Phase) -> Iterator[str]:
    if plan.config.operation(phase.layer, Mlp).gated:
        yield from check_pairs(plan, phase)


def _gate_up(worker: Worker, phase: Phase) -> None:
    read = worker.read_stream(phase)
    mlp = worker.plan.config.operation(phase.layer, Mlp)
    for lane, rows in worker.pieces(phase.matrices[0]):
        x = worker.own(read, lane)
        products = [worker.product(phase.layer, y, lane, rows, x) for y in phase.matrices]
        worker.store(Buffer.HIDDEN, (lane,), rows, hidden_of(mlp, products))


_PART = Part(
    operation=Mlp,
    kinds={
        PhaseKind.GATE_UP: Kind(
            touches=lambda _, __: Touches(writes=(Buffer.HIDDEN,)),
            roles=_ups,
            updates=joined_before(Mlp),
            faults=_check_ups,
            run=_gate_up,
        ),
        PhaseKind.DOWN: last_product(Mlp, Role.DOWN, Buffer.HIDDEN),
    },
    build=_build,
    order=_order,
    share_out=_share_out,
)
PARTS = (_PART,)
