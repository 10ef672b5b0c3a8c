"""KDA_IN, KDA_UP, KDA and KDA_OUT: a layer with Kimi's delta rule in place of attention.

Products are shared out by rows, states by heads: nobody else reads a head's state. Such a model has
one lane.
"""

from collections.abc import Mapping

import numpy as np

from monolane.model import Role
from monolane.ops._names import Buffer
from monolane.ops.kda.reference import CONVS, convolve, step_states
from monolane.ops.kda.spec import Kda
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
from monolane.reference import rms_norm, sigmoid

_IN = (Role.Q, Role.K, Role.V, Role.KDA_DECAY_DOWN, Role.KDA_GATE_DOWN, Role.KDA_BETA)
_UP = (Role.KDA_DECAY_UP, Role.KDA_GATE_UP)


def _build(builder: Builder, layer: int, place: int) -> tuple[Phase, ...]:
    mixed, made = own(Buffer.MIXED, layer), own(Buffer.LATENTS, layer)
    state, heads = own(Buffer.STATE, layer, layer), own(Buffer.HEADS, layer)
    units = split(builder.config.operation(layer, Kda).heads, builder.groups.workers_each)
    before, output = builder.updates_before(layer, place), builder.output(place, layer)
    return (
        builder.phase(PhaseKind.KDA_IN, layer, *_IN, updates=before, writes=(mixed,)),
        builder.phase(PhaseKind.KDA_UP, layer, *_UP, reads=(mixed,), writes=(made,)),
        builder.phase(
            PhaseKind.KDA,
            layer,
            units=Share(Scope.GROUP, units),
            reads=(mixed, made, state),
            writes=(state, heads),
        ),
        builder.phase(PhaseKind.KDA_OUT, layer, Role.O, reads=(heads,), writes=(output,)),
    )


def _order(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    del plan, layer
    return (PhaseKind.KDA_IN, PhaseKind.KDA_UP, PhaseKind.KDA, PhaseKind.KDA_OUT)


def _share_out(builder: Builder, layer: int) -> Mapping[Role, Share]:
    ins, ups = (builder.share_in_turn(layer, dict.fromkeys(roles, 1)) for roles in (_IN, _UP))
    return {**ins, **ups, Role.O: builder.share(Role.O, layer)}


def _units(plan: Plan, layer: int) -> int:
    return plan.config.operation(layer, Kda).heads


def _steps(plan: Plan, phase: Phase, width: int, length: int) -> tuple[int, int]:
    """Return the bytes of the states, read and written once, and the products with them."""
    del length
    o = plan.config.operation(phase.layer, Kda)
    numbers = o.columns * o.width
    # Each number of a state is multiplied four times: kept in part, asked, added to, asked again.
    return 2 * 4 * numbers, width * (4 * numbers + 3 * o.columns * o.kernel)


def _in(worker: Worker, phase: Phase) -> None:
    x = worker.read_stream(phase)[0]
    before = 0
    for matrix in phase.matrices:
        for lane, rows in worker.pieces(matrix):
            y = worker.product(phase.layer, matrix, lane, rows, x)
            where = slice(before + rows.start, before + rows.stop)
            worker.store(Buffer.MIXED, (0,), where, y)
        before += matrix.rows


def _up(worker: Worker, phase: Phase) -> None:
    o = worker.plan.config.operation(phase.layer, Kda)
    for i, matrix in enumerate(phase.matrices):
        x = _read(worker, Buffer.MIXED, 3 * o.columns + i * o.width, o.width)
        for lane, rows in worker.pieces(matrix):
            y = worker.product(phase.layer, matrix, lane, rows, x)
            where = slice(i * o.columns + rows.start, i * o.columns + rows.stop)
            worker.store(Buffer.LATENTS, (0,), where, y)


def _kda(worker: Worker, phase: Phase) -> None:
    assert phase.units is not None
    o, weights = worker.plan.config.operation(phase.layer, Kda), worker.run.layers[phase.layer]
    before = (o.kernel - 1) * 3 * o.width
    for head in range(*phase.units.of(worker.index)):
        first = head * o.width
        mine = slice(first, first + o.width)
        new = [_read(worker, Buffer.MIXED, i * o.columns + first, o.width) for i in range(3)]
        a_Td, z_Td = (
            _read(worker, Buffer.LATENTS, i * o.columns + first, o.width) for i in range(2)
        )
        b_T1 = _read(worker, Buffer.MIXED, 3 * o.columns + 2 * o.width + head, 1)
        kept = np.zeros(worker.plan.shape(Buffer.STATE, phase.layer)[-1], np.float32)
        if worker.position:
            kept = worker.read(Buffer.STATE, (phase.layer, head))
        inputs_Xc = np.concatenate([kept[:before].reshape(-1, 3 * o.width), np.hstack(new)])
        taps_cC = np.concatenate([weights[role][0, mine, 0] for role in CONVS])
        channels = convolve(inputs_Xc, taps_cC).reshape(worker.width, 3, 1, o.width)
        a_T1d = (a_Td + weights[Role.KDA_STEP][0, mine])[:, None]
        decay_1 = weights[Role.KDA_DECAY].reshape(-1)[head : head + 1]
        state_1dd = kept[before:].reshape(1, o.width, o.width)
        said_T1d, state_1dd = step_states(channels, a_T1d, b_T1, decay_1, state_1dd)
        whole = np.concatenate([inputs_Xc[worker.width :].ravel(), state_1dd.ravel()])
        worker.write(Buffer.STATE, (phase.layer, head), (slice(None),), whole)
        scale, eps = weights[Role.KDA_NORM], worker.plan.config.norm_eps
        normed_T1d = rms_norm(said_T1d, scale, eps)
        worker.store(Buffer.HEADS, (0,), mine, normed_T1d[:, 0] * sigmoid(z_Td))


def _read(worker: Worker, buffer: Buffer, first: int, count: int) -> Floats:
    """Return columns of what an earlier phase made for the tokens of the pass: [T, count]."""
    return worker.read(buffer, (0, slice(worker.width), slice(first, first + count)))


_PART = Part(
    operation=Kda,
    kinds={
        PhaseKind.KDA_IN: Kind(
            touches=lambda _, __: Touches(writes=(Buffer.MIXED,)),
            roles=lambda _, __: _IN,
            updates=joined_before(Kda),
            run=_in,
        ),
        PhaseKind.KDA_UP: Kind(
            touches=lambda _, __: Touches((Buffer.MIXED,), (Buffer.LATENTS,)),
            roles=lambda _, __: _UP,
            run=_up,
        ),
        PhaseKind.KDA: Kind(
            touches=lambda _, __: Touches(
                (Buffer.MIXED, Buffer.LATENTS, Buffer.STATE), (Buffer.STATE, Buffer.HEADS)
            ),
            units=_units,
            beside=_steps,
            run=_kda,
        ),
        PhaseKind.KDA_OUT: last_product(Kda, Role.O, Buffer.HEADS),
    },
    build=_build,
    order=_order,
    share_out=_share_out,
)
PARTS = (_PART,)
