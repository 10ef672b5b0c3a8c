"""OUT: the last product of attention; where nothing else did, it merges the partials first.

Where attention has a gate, what is merged is multiplied by its sigmoids.
"""

from monolane.model import ModelConfig, Role
from monolane.plan._builder import Builder, own
from monolane.plan._interpreter_worker import Worker
from monolane.plan._kinds.kind import Kind, Part, Touches
from monolane.plan._phase import Buffer, Phase, PhaseKind
from monolane.plan._plan import Plan
from monolane.reference import sigmoid


def _build(builder: Builder, layer: int) -> tuple[Phase, ...]:
    if builder.config.layers[layer].delta:
        return ()
    read = Buffer.ATTENTION if builder.config.latent is None else Buffer.HEADS
    gate = (Buffer.QUERY_GATE,) if builder.config.attention_gate else ()
    reads = tuple(own(buffer, layer) for buffer in (read, *gate))
    writes = (builder.output(Buffer.ATTENTION_OUTPUT, layer),)
    return (builder.phase(PhaseKind.OUT, layer, Role.O, reads=reads, writes=writes),)


def _order(config: ModelConfig, layer: int) -> tuple[PhaseKind, ...]:
    return () if config.layers[layer].delta else (PhaseKind.OUT,)


def _touches(plan: Plan) -> Touches:
    read = Buffer.HEADS if plan.config.latent is not None else Buffer.ATTENTION
    gate = (Buffer.QUERY_GATE,) if plan.config.attention_gate else ()
    return Touches((read, *gate), (Buffer.ATTENTION_OUTPUT,))


def _run(worker: Worker, phase: Phase) -> None:
    (matrix,) = phase.matrices
    for lane, rows in worker.pieces(matrix):
        if worker.plan.config.latent is None:
            read = worker.merged(phase.layer, lane)
        else:
            read = worker.memory.read(Buffer.HEADS, (lane, slice(worker.width)))
        if worker.plan.config.attention_gate:
            read = read * sigmoid(
                worker.memory.read(Buffer.QUERY_GATE, (lane, slice(worker.width)))
            )
        y = worker.product(phase.layer, matrix, lane, rows, read)
        if worker.plan.config.out_bias:
            y = y + worker.run.layers[phase.layer][Role.O_BIAS][0, rows]
        worker.store(Buffer.ATTENTION_OUTPUT, (phase.writes[0].slot, lane), rows, y)


PART = Part(
    module=Buffer.ATTENTION_OUTPUT,
    kinds={PhaseKind.OUT: Kind(touches=_touches, roles=lambda _: (Role.O,), run=_run)},
    build=_build,
    order=_order,
    share_out=lambda builder: {Role.O: builder.share(Role.O)},
)
