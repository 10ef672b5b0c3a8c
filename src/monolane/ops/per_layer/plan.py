"""PER_LAYER_INPUTS once a pass; of each layer PER_LAYER_GATE and PER_LAYER_OUT."""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from monolane.model import ModelConfig, Role
from monolane.ops._names import Buffer
from monolane.ops.per_layer.spec import PerLayer
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
    last_product,
    own,
)
from monolane.reference import GATES, rms_norm


def _any(config: ModelConfig) -> PerLayer | None:
    """Return the operation of the first layer that has it: the inputs are those of all."""
    found = (config.find(i, PerLayer) for i in range(config.num_layers))
    return next((x for x in found if x is not None), None)


def _build_inputs(builder: Builder, layer: int, _: int) -> tuple[Phase, ...]:
    if _any(builder.config) is None:
        return ()
    writes = (own(Buffer.PER_LAYER, layer),)
    role = Role.PER_LAYER_PROJECTION
    return (builder.phase(PhaseKind.PER_LAYER_INPUTS, layer, role, writes=writes),)


def _order_inputs(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    del layer
    return () if _any(plan.config) is None else (PhaseKind.PER_LAYER_INPUTS,)


def _share_inputs(builder: Builder, layer: int) -> Mapping[Role, Share]:
    """Share out whole layers: the products of each are normed together."""
    operation = _any(builder.config)
    if operation is None:
        return {}
    return builder.share_in_turn(layer, {Role.PER_LAYER_PROJECTION: operation.inner})


def _check_cuts(plan: Plan, phase: Phase) -> Iterator[str]:
    (matrix,), operation = phase.matrices, _any(plan.config)
    assert operation is not None
    if wrong := [bound for bound in matrix.share.bounds if bound % operation.inner]:
        yield f"{matrix.role}: a layer that is normed is cut at row {wrong[0]}"


def _inputs(worker: Worker, phase: Phase) -> None:
    (matrix,), config = phase.matrices, worker.plan.config
    operation, outer = _any(config), worker.run.outer
    assert operation is not None
    for lane, rows in worker.pieces(matrix):
        y = worker.product(None, matrix, lane, rows, worker.x[0])
        y = y * np.float32(config.hidden_size**-0.5)
        whole = y.reshape(1, -1, operation.inner)
        normed = rms_norm(whole, outer[Role.PER_LAYER_NORM], config.norm_eps)[0].reshape(y.shape)
        tokens = np.asarray(worker.tokens)
        tokens = np.where(tokens < operation.rows, tokens, 0)
        found = outer[Role.PER_LAYER_EMBEDDING][tokens, rows]
        found = found * np.float32(operation.inner**0.5)
        both = (normed + found) * np.float32(math.sqrt(0.5))
        worker.store(Buffer.PER_LAYER, (0,), rows, both)


def _build(builder: Builder, layer: int, place: int) -> tuple[Phase, ...]:
    hidden, output = own(Buffer.HIDDEN, layer), builder.output(place, layer)
    return (
        builder.phase(
            PhaseKind.PER_LAYER_GATE,
            layer,
            Role.PER_LAYER_GATE,
            updates=builder.updates_before(layer, place),
            reads=(own(Buffer.PER_LAYER, -1),),
            writes=(hidden,),
        ),
        builder.phase(
            PhaseKind.PER_LAYER_OUT, layer, Role.PER_LAYER_OUT, reads=(hidden,), writes=(output,)
        ),
    )


def _order(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    del plan, layer
    return (PhaseKind.PER_LAYER_GATE, PhaseKind.PER_LAYER_OUT)


def _share_out(builder: Builder, layer: int) -> Mapping[Role, Share]:
    roles = (Role.PER_LAYER_GATE, Role.PER_LAYER_OUT)
    return {role: builder.share(role, layer) for role in roles}


def _gate(worker: Worker, phase: Phase) -> None:
    (matrix,), read = phase.matrices, worker.read_stream(phase)
    operation = worker.plan.config.operation(phase.layer, PerLayer)
    for lane, rows in worker.pieces(matrix):
        gate = worker.product(phase.layer, matrix, lane, rows, worker.own(read, lane))
        first = phase.layer * operation.inner
        where = slice(first + rows.start, first + rows.stop)
        inputs = worker.read(Buffer.PER_LAYER, (0, slice(worker.width), where))
        hidden = GATES[operation.activation](gate, inputs)
        worker.store(Buffer.HIDDEN, (0,), rows, hidden)


_INPUTS = Part(
    kinds={
        PhaseKind.PER_LAYER_INPUTS: Kind(
            touches=lambda _, __: Touches(writes=(Buffer.PER_LAYER,)),
            roles=lambda _, __: (Role.PER_LAYER_PROJECTION,),
            faults=_check_cuts,
            run=_inputs,
        )
    },
    build=_build_inputs,
    order=_order_inputs,
    share_out=_share_inputs,
)
_PART = Part(
    operation=PerLayer,
    kinds={
        PhaseKind.PER_LAYER_GATE: Kind(
            touches=lambda _, __: Touches((Buffer.PER_LAYER,), (Buffer.HIDDEN,)),
            roles=lambda _, __: (Role.PER_LAYER_GATE,),
            updates=joined_before(PerLayer),
            run=_gate,
        ),
        PhaseKind.PER_LAYER_OUT: last_product(PerLayer, Role.PER_LAYER_OUT, Buffer.HIDDEN),
    },
    build=_build,
    order=_order,
    share_out=_share_out,
)
FIRST = (_INPUTS,)
PARTS = (_PART,)
