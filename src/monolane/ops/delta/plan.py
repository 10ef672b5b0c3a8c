"""DELTA_IN, DELTA and DELTA_OUT: a layer with a gated delta rule in place of attention.

Products are shared out by rows, states by key heads: who has one makes all that its value heads
need of the products, and nobody else reads their states. Such a model has one lane.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from monolane.model import Delta, Role
from monolane.ops._names import Buffer
from monolane.ops.delta.reference import convolve, part_gates, step_states
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
from monolane.reference import rms_norm, silu

_IN = (Role.DELTA_QKV, Role.DELTA_Z, Role.DELTA_GATES)


def _build(builder: Builder, layer: int, place: int) -> tuple[Phase, ...]:
    delta = builder.config.operation(layer, Delta)
    mixed, heads = own(Buffer.MIXED, layer), own(Buffer.HEADS, layer)
    state = own(Buffer.STATE, layer, layer)
    return (
        builder.phase(
            PhaseKind.DELTA_IN,
            layer,
            *_IN,
            updates=builder.updates_before(layer, place),
            writes=(mixed,),
        ),
        builder.phase(
            PhaseKind.DELTA,
            layer,
            units=Share(Scope.GROUP, split(delta.key_heads, builder.groups.workers_each)),
            reads=(mixed, state),
            writes=(state, heads),
        ),
        builder.phase(
            PhaseKind.DELTA_OUT,
            layer,
            Role.DELTA_OUT,
            reads=(heads,),
            writes=(builder.output(place, layer),),
        ),
    )


def _order(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    del plan, layer
    return (PhaseKind.DELTA_IN, PhaseKind.DELTA, PhaseKind.DELTA_OUT)


def _share_out(builder: Builder, layer: int) -> Mapping[Role, Share]:
    ends = {Role.DELTA_OUT: builder.share(Role.DELTA_OUT, layer)}
    return {**builder.share_in_turn(layer, dict.fromkeys(_IN, 1)), **ends}


def _units(plan: Plan, layer: int) -> int:
    return plan.config.operation(layer, Delta).key_heads


def _steps(plan: Plan, phase: Phase, width: int, length: int) -> tuple[int, int]:
    """Return the bytes of the states, read and written once, and the products with them."""
    del length
    delta = plan.config.operation(phase.layer, Delta)
    # Each number of a state is multiplied four times: kept in part, asked, added to, asked again.
    sums = delta.channels * delta.kernel
    return 2 * 4 * delta.numbers, width * (4 * delta.numbers + sums)


def _in(worker: Worker, phase: Phase) -> None:
    x = worker.read_stream(phase)[0]
    before = 0
    for matrix in phase.matrices:
        for lane, rows in worker.pieces(matrix):
            y = worker.product(phase.layer, matrix, lane, rows, x)
            where = slice(before + rows.start, before + rows.stop)
            worker.store(Buffer.MIXED, (0,), where, y)
        before += matrix.rows


def _key_heads(worker: Worker, phase: Phase) -> Iterator[int]:
    assert phase.units is not None
    yield from range(*phase.units.of(worker.index))


def _delta(worker: Worker, phase: Phase) -> None:
    delta, weights = (
        worker.plan.config.operation(phase.layer, Delta),
        worker.run.layers[phase.layer],
    )
    width, before = worker.width, (delta.kernel - 1) * delta.channels // delta.key_heads
    for head in _key_heads(worker, phase):
        mine = delta.of_one_key_head()
        values, channels = delta.values_of(head), delta.channels_of(head)
        new_Tc = np.concatenate([_mixed(worker, part) for part in channels], axis=-1)
        made = [slice(i * delta.value, (i + 1) * delta.value) for i in values]
        z_TUv = np.stack([_mixed(worker, part, delta.channels) for part in made], axis=1)
        gates = slice(2 * head * delta.each, 2 * (head + 1) * delta.each)
        b_TU, a_TU = part_gates(_mixed(worker, gates, delta.channels + delta.columns), mine)
        if worker.position:
            kept = worker.read(Buffer.STATE, (phase.layer, head))
        else:
            kept = np.zeros(worker.plan.shape(Buffer.STATE, phase.layer)[-1], np.float32)
        inputs_Xc = np.concatenate([kept[:before].reshape(-1, mine.channels), new_Tc])
        conv_cC = weights[Role.DELTA_CONV][0, :, 0]
        channels_Tc = convolve(inputs_Xc, np.concatenate([conv_cC[part] for part in channels]))
        decay_U, step_U = (weights[role][0, values] for role in (Role.DELTA_DECAY, Role.DELTA_STEP))
        state_Ukv = kept[before:].reshape(delta.each, delta.key, delta.value)
        said_TUv, state_Ukv = step_states(channels_Tc, b_TU, a_TU, decay_U, step_U, state_Ukv, mine)
        last = inputs_Xc[width:].ravel()
        whole = np.concatenate([last, state_Ukv.ravel()])
        region = (phase.layer, head)
        worker.write(Buffer.STATE, region, (slice(None),), whole)
        normed_TUv = rms_norm(said_TUv, weights[Role.DELTA_NORM], worker.plan.config.norm_eps)
        gated_TUv = normed_TUv * silu(z_TUv)
        for i, part in enumerate(made):
            worker.store(Buffer.HEADS, (0,), part, gated_TUv[:, i])


def _mixed(worker: Worker, part: slice, first: int = 0) -> Floats:
    """Return columns of what DELTA_IN made for the tokens of the pass, counted from ``first``."""
    where = slice(first + part.start, first + part.stop)
    return worker.read(Buffer.MIXED, (0, slice(worker.width), where))


_PART = Part(
    operation=Delta,
    kinds={
        PhaseKind.DELTA_IN: Kind(
            touches=lambda _, __: Touches(writes=(Buffer.MIXED,)),
            roles=lambda _, __: _IN,
            updates=joined_before(Delta),
            run=_in,
        ),
        PhaseKind.DELTA: Kind(
            touches=lambda _, __: Touches(
                (Buffer.MIXED, Buffer.STATE), (Buffer.STATE, Buffer.HEADS)
            ),
            units=_units,
            beside=_steps,
            run=_delta,
        ),
        PhaseKind.DELTA_OUT: last_product(Delta, Role.DELTA_OUT, Buffer.HEADS),
    },
    build=_build,
    order=_order,
    share_out=_share_out,
)
PARTS = (_PART,)
