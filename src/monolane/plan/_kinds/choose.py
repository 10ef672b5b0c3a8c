"""CHOOSE: the next token, by a leader, or by every worker alike."""

from monolane.ops import Buffer
from monolane.plan._builder import Builder, shared
from monolane.plan._device import Choice
from monolane.plan._interpreter_worker import Worker
from monolane.plan._kind import Kind, Part, Touches
from monolane.plan._phase import Phase, PhaseKind
from monolane.plan._plan import Plan


def _build(builder: Builder, layer: int, _: int) -> tuple[Phase, ...]:
    reads, writes = (shared(Buffer.LOGITS),), builder.led_tokens()
    return (builder.phase(PhaseKind.CHOOSE, layer, reads=reads, writes=writes),)


def _order(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    del plan, layer
    return (PhaseKind.CHOOSE,)


def _touches(plan: Plan, _: int) -> Touches:
    led = (Buffer.TOKENS,) if plan.device.choice is Choice.LEADER else ()
    return Touches(reads=(Buffer.LOGITS,), writes=led, wide=(Buffer.LOGITS, *led))


def _run(worker: Worker, phase: Phase) -> None:
    del phase
    worker.position += worker.width
    leads = worker.plan.device.choice is Choice.LEADER
    if leads and worker.index != 0:
        return
    logits = worker.read(Buffer.LOGITS, (slice(worker.width),))  # [T, V]
    drawn = int(logits[-1].argmax())
    following = worker.run.next_tokens(worker.pass_index, drawn)
    if leads:
        worker.memory.tokens = following
    else:
        worker.tokens = following
    if worker.index == 0:
        worker.run.logits.append(logits.copy())
        if worker.pass_index + 1 >= len(worker.run.passes):
            worker.run.drawn.append(drawn)


PART = Part(kinds={PhaseKind.CHOOSE: Kind(touches=_touches, run=_run)}, build=_build, order=_order)
