"""CONV_IN, CONV and CONV_OUT: a layer with a gated short convolution.

Products are shared out by rows, channels in parts: nobody else reads a part's last inputs. Such a
model has one lane.
"""

from collections.abc import Mapping

import numpy as np

from monolane.model import Role
from monolane.ops._names import Buffer
from monolane.ops.conv.reference import sums
from monolane.ops.conv.spec import Conv
from monolane.plan.parts import (
    Builder,
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
    joined_before,
    last_product,
    own,
    split,
)


def _build(builder: Builder, layer: int, place: int) -> tuple[Phase, ...]:
    mixed, heads = own(Buffer.MIXED, layer), own(Buffer.HEADS, layer)
    state = own(Buffer.STATE, layer, layer)
    parts = split(builder.config.operation(layer, Conv).parts, builder.groups.workers_each)
    before = builder.updates_before(layer, place)
    output = builder.output(place, layer)
    return (
        builder.phase(PhaseKind.CONV_IN, layer, Role.CONV_IN, updates=before, writes=(mixed,)),
        builder.phase(
            PhaseKind.CONV,
            layer,
            units=Share(Scope.GROUP, parts),
            reads=(mixed, state),
            writes=(state, heads),
        ),
        builder.phase(PhaseKind.CONV_OUT, layer, Role.CONV_OUT, reads=(heads,), writes=(output,)),
    )


def _order(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    del plan, layer
    return (PhaseKind.CONV_IN, PhaseKind.CONV, PhaseKind.CONV_OUT)


def _share_out(builder: Builder, layer: int) -> Mapping[Role, Share]:
    return {role: builder.share(role, layer) for role in (Role.CONV_IN, Role.CONV_OUT)}


def _units(plan: Plan, layer: int) -> int:
    return plan.config.operation(layer, Conv).parts


def _sums(plan: Plan, phase: Phase, width: int, length: int) -> tuple[int, int]:
    """Return the bytes of the last inputs, read and written once, and the products of the sums."""
    del length
    conv = plan.config.operation(phase.layer, Conv)
    kept = (conv.taps - 1) * conv.channels
    return 2 * 4 * kept, width * conv.taps * conv.channels


def _in(worker: Worker, phase: Phase) -> None:
    x = worker.read_stream(phase)[0]
    (matrix,) = phase.matrices
    for lane, rows in worker.pieces(matrix):
        y = worker.product(phase.layer, matrix, lane, rows, x)
        worker.store(Buffer.MIXED, (0,), rows, y)


def _conv(worker: Worker, phase: Phase) -> None:
    assert phase.units is not None
    conv, weights = worker.plan.config.operation(phase.layer, Conv), worker.run.layers[phase.layer]
    for part in range(*phase.units.of(worker.index)):
        channels = slice(part * conv.each, (part + 1) * conv.each)
        b, c, u = (_mixed(worker, channels, i * conv.channels) for i in range(3))
        kept = np.zeros((conv.taps - 1, conv.each), np.float32)
        if worker.position:
            kept = worker.read(Buffer.STATE, (phase.layer, part)).reshape(kept.shape)
        inputs = np.concatenate([kept, b * u])
        summed = sums(inputs, weights[Role.CONV_TAPS][0, channels, 0])
        last = inputs[worker.width :].ravel()
        worker.write(Buffer.STATE, (phase.layer, part), (slice(None),), last)
        worker.store(Buffer.HEADS, (0,), channels, c * summed)


def _mixed(worker: Worker, part: slice, first: int) -> Floats:
    where = slice(first + part.start, first + part.stop)
    return worker.read(Buffer.MIXED, (0, slice(worker.width), where))


_PART = Part(
    operation=Conv,
    kinds={
        PhaseKind.CONV_IN: Kind(
            touches=lambda _, __: Touches(writes=(Buffer.MIXED,)),
            roles=lambda _, __: (Role.CONV_IN,),
            updates=joined_before(Conv),
            run=_in,
        ),
        PhaseKind.CONV: Kind(
            touches=lambda _, __: Touches(
                (Buffer.MIXED, Buffer.STATE), (Buffer.STATE, Buffer.HEADS)
            ),
            units=_units,
            beside=_sums,
            run=_conv,
        ),
        PhaseKind.CONV_OUT: last_product(Conv, Role.CONV_OUT, Buffer.HEADS),
    },
    build=_build,
    order=_order,
    share_out=_share_out,
)
PARTS = (_PART,)
