"""ALTUP_IN, _PREDICT, _CORRECT, _OUT and _MEAN: several streams, of which layers work on the first.

See model/_altup.py. Each worker keeps all streams, as it keeps those of lanes: adding twice is
cheaper than waiting once. Only the products that streams begin and end with are shared out. Such a
model has one lane.
"""

from collections.abc import Mapping

import numpy as np

from monolane.model import ALTUP_IN, ALTUP_OUT, ALTUP_STEPS, ModelConfig, Role
from monolane.ops import Buffer
from monolane.plan._builder import Builder, own
from monolane.plan._interpreter_memory import Floats
from monolane.plan._interpreter_worker import Worker
from monolane.plan._kind import Joining, Kind, Part, Touches
from monolane.plan._phase import OUTPUTS, Phase, PhaseKind
from monolane.plan._plan import Plan
from monolane.plan._split import Share
from monolane.reference import as_long

_PRODUCTS = own(Buffer.ALTUP, -1)


def _others(config: ModelConfig, roles: tuple[Role, ...]) -> tuple[Role, ...]:
    """Return the roles of all streams but the first; none where there is one alone."""
    return roles[: config.num_streams - 1]


def _in_order(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    del layer
    return () if plan.config.altup is None else (PhaseKind.ALTUP_IN,)


def _build_in(builder: Builder, layer: int, _: int) -> tuple[Phase, ...]:
    if builder.config.altup is None:
        return ()
    roles = _others(builder.config, ALTUP_IN)
    return (builder.phase(PhaseKind.ALTUP_IN, layer, *roles, writes=(_PRODUCTS,)),)


def _share_in(builder: Builder, _: int) -> Mapping[Role, Share]:
    return {role: builder.share(role) for role in _others(builder.config, ALTUP_IN)}


def _in(worker: Worker, phase: Phase) -> None:
    for i in range(len(phase.matrices)):
        _multiply(worker, phase, i, worker.x[0])


def _predict_order(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    del layer
    return () if plan.config.altup is None else (PhaseKind.ALTUP_PREDICT,)


def _build_predict(builder: Builder, layer: int, _: int) -> tuple[Phase, ...]:
    if builder.config.altup is None:
        return ()
    if layer == 0:
        return (builder.phase(PhaseKind.ALTUP_PREDICT, layer, reads=(_PRODUCTS,)),)
    updates = builder.last_updates(layer - 1)
    return (builder.phase(PhaseKind.ALTUP_PREDICT, layer, updates=updates),)


def _before_predict(_: Plan, layer: int) -> tuple[Joining, ...]:
    return ((OUTPUTS[3], layer - 1),) if layer else ()


def _predict(worker: Worker, phase: Phase) -> None:
    if phase.layer == 0:
        worker.notes["streams"] = _as_long_as_first(worker, worker.x)
    streams, weights = worker.notes["streams"], worker.run.layers[phase.layer]
    said = _routed(worker, phase, streams[:1]) @ weights[Role.ALTUP_PREDICT][0].T
    shares_TAA = said.reshape(worker.width, len(streams), len(streams))
    streams = streams + np.einsum("tij,jtd->itd", shares_TAA, streams, optimize=True)
    worker.notes["streams"], worker.x = streams, streams[:1].copy()


def _correct_order(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    del layer
    return () if plan.config.altup is None else (PhaseKind.ALTUP_CORRECT,)


def _build_correct(builder: Builder, layer: int, place: int) -> tuple[Phase, ...]:
    if builder.config.altup is None:
        return ()
    updates = builder.updates_of(layer, place - 1)
    return (builder.phase(PhaseKind.ALTUP_CORRECT, layer, updates=updates),)


def _correct(worker: Worker, phase: Phase) -> None:
    streams, weights = worker.notes["streams"], worker.run.layers[phase.layer]
    error = worker.x - streams[:1]
    shares_TA = _routed(worker, phase, worker.x) @ weights[Role.ALTUP_CORRECT][0].T
    streams = streams + (shares_TA.T[:, :, None] + np.float32(1)) * error
    worker.notes["streams"], worker.x = streams, streams[:1].copy()
    if Role.ALTUP_SCALE in weights:
        worker.x *= weights[Role.ALTUP_SCALE]


def _out_order(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    del layer
    return () if plan.config.altup is None else (PhaseKind.ALTUP_OUT, PhaseKind.ALTUP_MEAN)


def _build_out(builder: Builder, layer: int, _: int) -> tuple[Phase, ...]:
    if builder.config.altup is None:
        return ()
    roles = _others(builder.config, ALTUP_OUT)
    updates = builder.last_updates(builder.config.num_layers - 1)
    return (
        builder.phase(PhaseKind.ALTUP_OUT, layer, *roles, updates=updates, writes=(_PRODUCTS,)),
        builder.phase(PhaseKind.ALTUP_MEAN, layer, reads=(_PRODUCTS,)),
    )


def _share_out(builder: Builder, _: int) -> Mapping[Role, Share]:
    return {role: builder.share(role) for role in _others(builder.config, ALTUP_OUT)}


def _out(worker: Worker, phase: Phase) -> None:
    for i in range(len(phase.matrices)):
        _multiply(worker, phase, i, worker.notes["streams"][1 + i])


def _mean(worker: Worker, phase: Phase) -> None:
    del phase
    streams = _as_long_as_first(worker, worker.notes["streams"][:1])
    worker.x = streams.mean(axis=0, keepdims=True)


def _multiply(worker: Worker, phase: Phase, i: int, x_TD: Floats) -> None:
    """Multiply what is given by the own rows of a phase's i-th matrix, and offer the products."""
    matrix, hidden = phase.matrices[i], x_TD.shape[-1]
    for lane, rows in worker.pieces(matrix):
        y = worker.product(None, matrix, lane, rows, x_TD)
        columns = slice(i * hidden + rows.start, i * hidden + rows.stop)
        worker.store(Buffer.ALTUP, (0,), columns, y)


def _as_long_as_first(worker: Worker, first_1TD: Floats) -> Floats:
    """Return the first stream, and the products in ALTUP, each as long: [A, T, D]."""
    products = worker.read(Buffer.ALTUP, (0, slice(worker.width)))  # [T, (A-1)*D]
    count = worker.plan.config.num_streams - 1
    each = (as_long(x[None], first_1TD) for x in np.split(products, count, axis=-1))
    return np.concatenate([first_1TD, *each])


def _routed(worker: Worker, phase: Phase, x_1TD: Floats) -> Floats:
    """Return what the router makes of a stream: [T, A]."""
    normed = worker.normed(x_1TD, phase.layer, Role.ALTUP_NORM)[0]
    router = worker.run.layers[phase.layer][Role.ALTUP_ROUTER][0]
    routed: Floats = np.tanh(normed * np.float32(1 / normed.shape[-1]) @ router.T)
    return routed


IN = Part(
    kinds={
        PhaseKind.ALTUP_IN: Kind(
            touches=lambda _, __: Touches(writes=(Buffer.ALTUP,)),
            roles=lambda config, _: _others(config, ALTUP_IN),
            run=_in,
        )
    },
    build=_build_in,
    order=_in_order,
    share_out=_share_in,
)
_PREDICT = Part(
    kinds={
        PhaseKind.ALTUP_PREDICT: Kind(
            touches=lambda _, layer: Touches(reads=() if layer else (Buffer.ALTUP,)),
            updates=_before_predict,
            run=_predict,
        )
    },
    build=_build_predict,
    order=_predict_order,
)
_CORRECT = Part(
    kinds={
        PhaseKind.ALTUP_CORRECT: Kind(
            touches=lambda _, __: Touches(),
            updates=lambda _, layer: ((OUTPUTS[2], layer),),
            run=_correct,
        )
    },
    build=_build_correct,
    order=_correct_order,
)
# Before which of a layer's modules.
STEPS = dict(zip(ALTUP_STEPS, (_PREDICT, _CORRECT), strict=True))
OUT = Part(
    kinds={
        PhaseKind.ALTUP_OUT: Kind(
            touches=lambda _, __: Touches(writes=(Buffer.ALTUP,)),
            roles=lambda config, _: _others(config, ALTUP_OUT),
            updates=lambda plan, _: ((OUTPUTS[3], plan.config.num_layers - 1),),
            run=_out,
        ),
        PhaseKind.ALTUP_MEAN: Kind(
            touches=lambda _, __: Touches(reads=(Buffer.ALTUP,)),
            run=_mean,
        ),
    },
    build=_build_out,
    order=_out_order,
    share_out=_share_out,
)
