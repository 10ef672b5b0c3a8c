"""MAMBA_IN, MAMBA and MAMBA_OUT: a layer with Mamba-2.

Products are shared out by rows, states by a few heads of a group each: nobody else reads those. A
norm goes over all heads of a group, so it is done where all are read. Such a model has one lane.
"""

from collections.abc import Mapping

import numpy as np

from monolane.model import Role
from monolane.ops._names import Buffer
from monolane.ops.mamba.reference import convolve, norm_groups, part_mixed, rates, step_states
from monolane.ops.mamba.spec import Mamba
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
    own,
    says,
    split,
)
from monolane.reference import silu


def _build(builder: Builder, layer: int, place: int) -> tuple[Phase, ...]:
    mixed, heads = own(Buffer.MIXED, layer), own(Buffer.HEADS, layer)
    state = own(Buffer.STATE, layer, layer)
    parts = split(builder.config.operation(layer, Mamba).parts, builder.groups.workers_each)
    before = builder.updates_before(layer, place)
    output = builder.output(place, layer)
    return (
        builder.phase(PhaseKind.MAMBA_IN, layer, Role.MAMBA_IN, updates=before, writes=(mixed,)),
        builder.phase(
            PhaseKind.MAMBA,
            layer,
            units=Share(Scope.GROUP, parts),
            reads=(mixed, state),
            writes=(state, heads),
        ),
        builder.phase(PhaseKind.MAMBA_OUT, layer, Role.MAMBA_OUT, reads=(heads,), writes=(output,)),
    )


def _order(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    del plan, layer
    return (PhaseKind.MAMBA_IN, PhaseKind.MAMBA, PhaseKind.MAMBA_OUT)


def _share_out(builder: Builder, layer: int) -> Mapping[Role, Share]:
    return {role: builder.share(role, layer) for role in (Role.MAMBA_IN, Role.MAMBA_OUT)}


def _units(plan: Plan, layer: int) -> int:
    return plan.config.operation(layer, Mamba).parts


def _steps(plan: Plan, phase: Phase, width: int, length: int) -> tuple[int, int]:
    """Return the bytes of the states, read and written once, and the products with them."""
    del length
    mamba = plan.config.operation(phase.layer, Mamba)
    numbers = mamba.heads * mamba.state_size * mamba.head
    # Each number of a state is multiplied three times: kept in part, added to, asked. Each part
    # sums b and c for itself.
    sums = mamba.kernel * (mamba.columns + mamba.parts * 2 * mamba.state_size)
    return 2 * 4 * numbers, width * (3 * numbers + sums)


def _in(worker: Worker, phase: Phase) -> None:
    x = worker.read_stream(phase)[0]
    (matrix,) = phase.matrices
    for lane, rows in worker.pieces(matrix):
        y = worker.product(phase.layer, matrix, lane, rows, x)
        worker.store(Buffer.MIXED, (0,), rows, y)


def _mamba(worker: Worker, phase: Phase) -> None:
    assert phase.units is not None
    for part in range(*phase.units.of(worker.index)):
        _step_part(worker, phase, part)


def _step_part(worker: Worker, phase: Phase, part: int) -> None:
    mamba = worker.plan.config.operation(phase.layer, Mamba)
    weights, width = worker.run.layers[phase.layer], worker.width
    own_heads, count, state_size = mamba.heads_of(part), mamba.together, mamba.state_size
    u, b, c = mamba.channels_of(part)
    columns = np.r_[u, b, c]  # of the part's channels among all
    mixed = np.full((width, mamba.mixed), np.nan, np.float32)  # what others made is not read
    for where in (u, *(_moved(x, mamba.columns) for x in (u, b, c))):
        mixed[:, where] = _read(worker, where)
    steps = _moved(own_heads, mamba.columns + mamba.channels)
    mixed[:, steps] = _read(worker, steps)
    z, channels, t = part_mixed(mixed, mamba)
    kept = np.zeros(worker.plan.shape(Buffer.STATE, phase.layer)[-1], np.float32)
    if worker.position:
        kept = worker.read(Buffer.STATE, (phase.layer, part))
    before = (mamba.kernel - 1) * len(columns)
    inputs = np.concatenate([kept[:before].reshape(-1, len(columns)), channels[:, columns]])
    bias = weights.get(Role.MAMBA_CONV_BIAS)
    conv = weights[Role.MAMBA_CONV][0, columns, 0]
    summed = convolve(inputs, conv, None if bias is None else bias[0, columns])
    own_u, own_b, own_c = np.split(summed, (count * mamba.head, len(columns) - state_size), axis=-1)
    step, decay, skip = (
        weights[role][0, own_heads] for role in (Role.MAMBA_STEP, Role.MAMBA_DECAY, Role.MAMBA_SKIP)
    )
    b_each, c_each = (np.repeat(x[:, None], count, axis=1) for x in (own_b, own_c))
    said, state = step_states(
        own_u.reshape(width, count, mamba.head),
        b_each,
        c_each,
        rates(t[:, own_heads], step),
        decay,
        skip,
        kept[before:].reshape(count, state_size, mamba.head),
    )
    whole = np.concatenate([inputs[width:].ravel(), state.ravel()])
    worker.write(Buffer.STATE, (phase.layer, part), (slice(None),), whole)
    gated = said.reshape(width, -1) * silu(z[:, u])
    worker.store(Buffer.HEADS, (0,), u, gated)


def _moved(part: slice, first: int) -> slice:
    return slice(first + part.start, first + part.stop)


def _read(worker: Worker, where: slice) -> Floats:
    """Return columns of what MAMBA_IN made for the tokens of the pass."""
    return worker.read(Buffer.MIXED, (0, slice(worker.width), where))


def _out(worker: Worker, phase: Phase) -> None:
    mamba = worker.plan.config.operation(phase.layer, Mamba)
    (matrix,), (write,) = phase.matrices, phase.writes
    norm = worker.run.layers[phase.layer].get(Role.MAMBA_NORM)
    scale, eps = None if norm is None else norm[0], worker.plan.config.norm_eps
    for lane, rows in worker.pieces(matrix):
        heads = worker.read(Buffer.HEADS, (0, slice(worker.width), slice(matrix.columns)))
        x = norm_groups(heads, scale, mamba.groups, eps)
        y = worker.product(phase.layer, matrix, lane, rows, x)
        worker.store(write.buffer, (write.slot, lane), rows, y)


_PART = Part(
    operation=Mamba,
    kinds={
        PhaseKind.MAMBA_IN: Kind(
            touches=lambda _, __: Touches(writes=(Buffer.MIXED,)),
            roles=lambda _, __: (Role.MAMBA_IN,),
            updates=joined_before(Mamba),
            run=_in,
        ),
        PhaseKind.MAMBA: Kind(
            touches=lambda _, __: Touches(
                (Buffer.MIXED, Buffer.STATE), (Buffer.STATE, Buffer.HEADS)
            ),
            units=_units,
            beside=_steps,
            run=_mamba,
        ),
        PhaseKind.MAMBA_OUT: Kind(
            touches=lambda plan, layer: Touches((Buffer.HEADS,), (says(Mamba)(plan, layer),)),
            roles=lambda _, __: (Role.MAMBA_OUT,),
            run=_out,
        ),
    },
    build=_build,
    order=_order,
    share_out=_share_out,
)
PARTS = (_PART,)
