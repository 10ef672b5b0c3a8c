"""ROUTE, EXPERT_GATE_UP and EXPERT_DOWN: a mixture of experts, in an MLP's place.

The router is shared out by rows, then the rows of each expert: every worker makes the same choice
for itself.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from monolane.model import Experts, ModelConfig, Role
from monolane.ops._names import Buffer
from monolane.ops.experts.reference import choose_experts, read_by_router
from monolane.plan.parts import (
    Builder,
    Floats,
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
    own,
    says,
)
from monolane.reference import GATES, linear, relu_squared, sigmoid

_BIASES = {
    Role.EXPERT_GATE: Role.EXPERT_GATE_BIAS,
    Role.EXPERT_UP: Role.EXPERT_UP_BIAS,
    Role.EXPERT_DOWN: Role.EXPERT_DOWN_BIAS,
}


def _build(builder: Builder, layer: int, place: int) -> tuple[Phase, ...]:
    mixture = builder.config.operation(layer, Experts)
    routed, hidden = own(Buffer.ROUTED, layer), own(Buffer.HIDDEN, layer)
    output = builder.output(place, layer)
    between = builder.updates_before(layer, place)
    halves = [Role.EXPERT_GATE, Role.EXPERT_UP], [Role.SHARED_GATE, Role.SHARED_UP]
    own_ups, shared_ups = (roles if mixture.gated else roles[1:] for roles in halves)
    ups, downs = own_ups, [Role.EXPERT_DOWN]
    if mixture.shared:
        ups, downs = [*ups, *shared_ups], [*downs, Role.SHARED_DOWN]
    return (
        builder.phase(PhaseKind.ROUTE, layer, Role.ROUTER, updates=between, writes=(routed,)),
        builder.phase(PhaseKind.EXPERT_GATE_UP, layer, *ups, reads=(routed,), writes=(hidden,)),
        builder.phase(PhaseKind.EXPERT_DOWN, layer, *downs, reads=(hidden,), writes=(output,)),
    )


def _order(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    del plan, layer
    return (PhaseKind.ROUTE, PhaseKind.EXPERT_GATE_UP, PhaseKind.EXPERT_DOWN)


def _share_out(builder: Builder, layer: int) -> Mapping[Role, Share]:
    mixture = builder.config.operation(layer, Experts)
    router, up, down = (
        builder.share(role, layer) for role in (Role.ROUTER, Role.EXPERT_UP, Role.EXPERT_DOWN)
    )
    shares = {Role.ROUTER: router, Role.EXPERT_GATE: up, Role.EXPERT_UP: up}
    shares[Role.EXPERT_DOWN] = down
    if mixture.shared:
        shared = builder.share(Role.SHARED_UP, layer)
        shares |= {Role.SHARED_GATE: shared, Role.SHARED_UP: shared}
        shares[Role.SHARED_DOWN] = down  # which are added up
    gates = () if mixture.gated else (Role.EXPERT_GATE, Role.SHARED_GATE)
    return {role: share for role, share in shares.items() if role not in gates}


def _has_shared(config: ModelConfig, layer: int) -> bool:
    return config.operation(layer, Experts).shared > 0


def _up_roles(config: ModelConfig, layer: int) -> tuple[Role, ...]:
    if not config.operation(layer, Experts).gated:
        return (Role.EXPERT_UP, *((Role.SHARED_UP,) if _has_shared(config, layer) else ()))
    shared = (Role.SHARED_GATE, Role.SHARED_UP) if _has_shared(config, layer) else ()
    return (Role.EXPERT_GATE, Role.EXPERT_UP, *shared)


def _check_ups(plan: Plan, phase: Phase) -> Iterator[str]:
    if plan.config.operation(phase.layer, Experts).gated:
        yield from check_pairs(plan, phase)


def _down_roles(config: ModelConfig, layer: int) -> tuple[Role, ...]:
    return (Role.EXPERT_DOWN, *((Role.SHARED_DOWN,) if _has_shared(config, layer) else ()))


def _check_downs(plan: Plan, phase: Phase) -> Iterator[str]:
    del plan
    if len({matrix.share for matrix in phase.matrices}) > 1:
        yield "expected all that is added up of a mixture to be shared out alike"


def _route(worker: Worker, phase: Phase) -> None:
    read, layer = worker.read_stream(phase), worker.run.layers[phase.layer]
    if (scale := layer.get(Role.ROUTER_NORM)) is not None:
        read = read_by_router(worker.x, scale, worker.plan.config.norm_eps)
    (matrix,) = phase.matrices
    for lane, rows in worker.pieces(matrix):
        y = worker.product(phase.layer, matrix, lane, rows, worker.own(read, lane))
        if Role.ROUTER_BIAS in layer:
            y = y + layer[Role.ROUTER_BIAS][lane, rows]
        worker.store(Buffer.ROUTED, (lane,), rows, y)


def _gate_up(worker: Worker, phase: Phase) -> None:
    config = worker.plan.config
    experts = config.operation(phase.layer, Experts)
    logits = worker.read(Buffer.ROUTED, (0, slice(worker.width)))
    layer = worker.run.layers[phase.layer]
    correction, scales = (layer.get(x) for x in (Role.ROUTER_CORRECTION, Role.EXPERT_SCALES))
    worker.notes["choice"] = choose_experts(logits, experts, correction, scales)
    x = worker.read_stream(phase)[0]
    roles = (Role.EXPERT_GATE, Role.EXPERT_UP) if experts.gated else (Role.EXPERT_UP,)
    for _, rows in worker.pieces(phase.matrices[0]):
        whole = np.zeros((worker.width, experts.chosen, len(range(rows.start, rows.stop))))
        hidden = whole.astype(np.float32)
        for expert, tokens, places in _chosen(worker):
            # Rows of products for rows that are read: so no input is packed anew for an expert.
            weights = worker.notes["choice"][tokens, expert, None] if experts.weigh_inputs else 1
            products = [
                _product(worker, phase.layer, role, expert, rows, x[tokens]) * weights
                for role in roles
            ]
            hidden[tokens, places] = _hidden(experts, products)
        for place in range(experts.chosen):
            begin = place * experts.inner
            where = slice(begin + rows.start, begin + rows.stop)
            worker.store(Buffer.HIDDEN, (0,), where, hidden[:, place])
    gate = worker.run.layers[phase.layer].get(Role.SHARED_EXPERT_GATE)
    if gate is not None:
        worker.notes["shared_weight"] = sigmoid(linear(x[None], gate[:, None])[0])
    shared = phase.matrices[len(roles) :]
    for lane, rows in worker.pieces(shared[0]) if shared else ():
        products = [worker.product(phase.layer, matrix, lane, rows, x) for matrix in shared]
        begin = experts.chosen * experts.inner
        where = slice(begin + rows.start, begin + rows.stop)
        worker.store(Buffer.HIDDEN, (0,), where, _hidden(experts, products))


def _hidden(experts: Experts, products: list[Floats]) -> Floats:
    """Return what the last matrix reads, of the products with gate and up, or with up alone."""
    return GATES[experts.activation](*products) if experts.gated else relu_squared(*products)


def _down(worker: Worker, phase: Phase) -> None:
    experts, (matrix, *shared) = worker.plan.config.operation(phase.layer, Experts), phase.matrices
    for lane, rows in worker.pieces(matrix):
        own_columns = experts.chosen * experts.inner
        columns = slice(own_columns + experts.shared)
        both = worker.read(Buffer.HIDDEN, (lane, slice(worker.width), columns))
        hidden = both[:, :own_columns].reshape(worker.width, experts.chosen, experts.inner)
        y = np.zeros((worker.width, rows.stop - rows.start), np.float32)
        for expert, tokens, places in _chosen(worker):
            read = hidden[tokens, places]
            made = _product(worker, phase.layer, matrix.role, expert, rows, read)
            weights = 1 if experts.weigh_inputs else worker.notes["choice"][tokens, expert, None]
            y[tokens] += weights * made
        for every in shared:  # with the same rows
            made = worker.product(phase.layer, every, lane, rows, both[:, own_columns:])
            y += worker.notes.get("shared_weight", np.float32(1)) * made
        worker.store(phase.writes[0].buffer, (phase.writes[0].slot, lane), rows, y)


def _product(worker: Worker, layer: int, role: Role, expert: int, rows: slice, x: Floats) -> Floats:
    y: Floats = linear(x[None], worker.run.experts[role, layer][expert][:, rows])[0]
    bias = worker.run.layers[layer].get(_BIASES[role])
    return y if bias is None else y + bias[0, expert, rows]


def _chosen(
    worker: Worker,
) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yield each chosen expert, its tokens, and its place among the experts of each."""
    places = np.cumsum(worker.notes["choice"] != 0, axis=-1) - 1
    for expert in range(worker.notes["choice"].shape[-1]):
        tokens = np.flatnonzero(worker.notes["choice"][:, expert])
        if tokens.size:
            yield expert, tokens, places[tokens, expert]


_PART = Part(
    operation=Experts,
    kinds={
        PhaseKind.ROUTE: Kind(
            touches=lambda _, __: Touches(writes=(Buffer.ROUTED,)),
            roles=lambda _, __: (Role.ROUTER,),
            updates=joined_before(Experts),
            run=_route,
        ),
        PhaseKind.EXPERT_GATE_UP: Kind(
            touches=lambda _, __: Touches((Buffer.ROUTED,), (Buffer.HIDDEN,)),
            roles=_up_roles,
            faults=_check_ups,
            run=_gate_up,
        ),
        PhaseKind.EXPERT_DOWN: Kind(
            touches=lambda plan, layer: Touches((Buffer.HIDDEN,), (says(Experts)(plan, layer),)),
            roles=_down_roles,
            faults=_check_downs,
            run=_down,
        ),
    },
    build=_build,
    order=_order,
    share_out=_share_out,
)
PARTS = (_PART,)
