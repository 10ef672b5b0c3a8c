"""AHEAD: what layers that predict further ahead begin with. Such a model has one lane."""

from collections.abc import Mapping

import numpy as np

from monolane.model import Role
from monolane.ops._names import Buffer
from monolane.ops.ahead.spec import Ahead
from monolane.plan.parts import (
    Builder,
    Choice,
    Kind,
    Part,
    Phase,
    PhaseKind,
    Plan,
    Share,
    Touches,
    Worker,
    joined_before,
    says,
)

_said = says(Ahead)


def _build(builder: Builder, layer: int, place: int) -> tuple[Phase, ...]:
    return (
        builder.phase(
            PhaseKind.AHEAD,
            layer,
            Role.AHEAD_IN,
            updates=builder.updates_before(layer, place),
            reads=builder.led_tokens(),  # with which states are laid out
            writes=(builder.output(place, layer),),
        ),
    )


def _order(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    del plan, layer
    return (PhaseKind.AHEAD,)


def _share_out(builder: Builder, layer: int) -> Mapping[Role, Share]:
    return {Role.AHEAD_IN: builder.share(Role.AHEAD_IN, layer)}


def _touches(plan: Plan, layer: int) -> Touches:
    led = (Buffer.TOKENS,) if plan.device.choice is Choice.LEADER else ()
    return Touches(reads=led, writes=(_said(plan, layer),), wide=led)


def _run(worker: Worker, phase: Phase) -> None:
    (matrix,), (write,) = phase.matrices, phase.writes
    states = worker.run.states[worker.pass_index]
    both = [
        worker.normed(x[None], phase.layer, role)[0]
        for x, role in ((worker.x[0], Role.AHEAD_TOKEN_NORM), (states, Role.AHEAD_STATE_NORM))
    ]
    x = np.concatenate(both, axis=-1)
    for lane, rows in worker.pieces(matrix):
        y = worker.product(phase.layer, matrix, lane, rows, x)
        worker.store(write.buffer, (write.slot, lane), rows, y)


_PART = Part(
    operation=Ahead,
    kinds={
        PhaseKind.AHEAD: Kind(
            touches=_touches,
            roles=lambda _, __: (Role.AHEAD_IN,),
            updates=joined_before(Ahead),
            run=_run,
        )
    },
    build=_build,
    order=_order,
    share_out=_share_out,
)
PARTS = (_PART,)
